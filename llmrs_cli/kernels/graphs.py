"""Recorded launches: a size that is met again has its launches made one CUDA graph, and a bounded number of graphs is held.

The first time they run as they are, which loads every kernel and lets cuBLASLt choose its algorithms, since
neither may happen during a recording. What is recorded are addresses: the key must change with them.

A graph takes memory of the GPU for each of its launches, so what is held must come to an end, and soon. Keys of which there
are few are recorded the second time and kept. Of the others, `passing` ones, sizes that come once an hour would go on taking
memory for as long as they are new: they share `most` places, which fill in the first minute of a varied load. From then on a
key takes the place of another only where it is met clearly more often. Uses are counted for that, and halved now and then, so
that they say what is frequent now. Nothing here knows what a launch is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

Result = TypeVar("Result")
MOST = 32
"""Places of passing keys. The most varied of simulated loads ran 2 % of its steps without a graph."""
AGE = 1024
"""Runs of passing keys after which uses count half."""
MARGIN = 4
"""Uses beside twice those of another that a key must have to take its place: recording costs as much as some runs."""


@dataclass(slots=True)
class Graphs:
    """Graphs by key; for one thread, on whatever stream is current."""

    most: int = MOST

    _met: set[Hashable] = field(default_factory=set)
    _kept: dict[Hashable, tuple[Any, Any]] = field(default_factory=dict)
    _passing: dict[Hashable, tuple[Any, Any]] = field(default_factory=dict)
    _uses: dict[Hashable, int] = field(default_factory=dict)
    """Of passing keys, recorded or not."""
    _runs: int = 0
    """Of passing keys."""

    def run(self, key: Hashable, body: Callable[[], Result], passing: bool = False) -> Result:
        """Run `body` or replay its recording; returns what it returned when it was recorded."""
        graphs, pays = (self._passing, self._wins) if passing else (self._kept, self._met_before)
        if passing:
            self._count(key)
        known = graphs.get(key)
        if known is None:
            if not pays(key):
                return body()
            known = graphs[key] = self._record(body)
        graph, result = known
        graph.launch()
        return result  # type: ignore[no-any-return]

    def forget_recordings(self) -> None:
        """After addresses have changed: what has run before is recorded anew when it is met next."""
        self._kept.clear()
        self._passing.clear()

    def _met_before(self, key: Hashable) -> bool:
        if key in self._met:
            return True
        self._met.add(key)
        return False

    def _count(self, key: Hashable) -> None:
        self._runs += 1
        if self._runs % AGE == 0:
            self._uses = {known: uses // 2 for known, uses in self._uses.items() if uses > 1}
        self._uses[key] = self._uses.get(key, 0) + 1

    def _wins(self, key: Hashable) -> bool:
        """Whether a key that has run before finds a place: one that is free, or another's, which is given up first, so
        that a new graph finds its memory."""
        uses = self._uses[key]
        if uses < 2 or len(self._passing) < self.most:
            return uses >= 2
        rarest = min(self._passing, key=lambda held: self._uses.get(held, 0))
        if uses < 2 * self._uses.get(rarest, 0) + MARGIN:
            return False
        del self._passing[rarest]
        return True

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
