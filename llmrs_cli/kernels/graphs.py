"""Recorded launches: the second time that a size is met its launches become one CUDA graph.

The first time they run as they are, which loads every kernel and lets cuBLASLt choose its algorithms, since
neither may happen during a recording. What is recorded are addresses: the key must change with them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

Result = TypeVar("Result")


@dataclass(slots=True)
class Graphs:
    """Graphs by key; for one thread, on whatever stream is current."""

    _met: set[Hashable] = field(default_factory=set)
    _graphs: dict[Hashable, tuple[Any, Any]] = field(default_factory=dict)

    def run(self, key: Hashable, body: Callable[[], Result]) -> Result:
        """Run `body` or replay its recording; returns what it returned when it was recorded."""
        known = self._graphs.get(key)
        if known is None:
            if key not in self._met:
                self._met.add(key)
                return body()
            known = self._graphs[key] = self._record(body)
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
