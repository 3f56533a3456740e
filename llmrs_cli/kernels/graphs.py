"""Recorded launches: the second time that a size is met its launches become one CUDA graph. The graphs used last are kept.

The first time they run as they are, which loads every kernel and lets cuBLASLt choose its algorithms, since
neither may happen during a recording. What is recorded are addresses: the key must change with them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

Result = TypeVar("Result")
MOST = 512
"""Graphs; one of some hundred launches takes some hundred kilobytes of the GPU."""


@dataclass(slots=True)
class Graphs:
    """Graphs by key; for one thread, on whatever stream is current."""

    most: int = MOST

    _met: set[Hashable] = field(default_factory=set)
    _graphs: dict[Hashable, tuple[Any, Any]] = field(default_factory=dict)
    """The one used last comes last."""

    def run(self, key: Hashable, body: Callable[[], Result]) -> Result:
        """Run `body` or replay its recording; returns what it returned when it was recorded."""
        known = self._graphs.pop(key, None)
        if known is None:
            if key not in self._met:
                self._met.add(key)
                return body()
            known = self._record(body)
            if len(self._graphs) >= self.most:
                del self._graphs[next(iter(self._graphs))]
        self._graphs[key] = known
        graph, result = known
        graph.launch()
        return result  # type: ignore[no-any-return]

    def forget_recordings(self) -> None:
        """After addresses have changed: what has run before is recorded anew when it is met next."""
        self._graphs.clear()

    @staticmethod
    def _record(body: Callable[[], Result]) -> tuple[Any, Result]:
        import cupy

        stream = cupy.cuda.get_current_stream()
        stream.begin_capture()
        try:
            result = body()
        finally:
            graph = stream.end_capture()
        return graph, result
