"""Seconds of a call: on the host by its clock, on a GPU as one launch in a recorded chain.

A kernel alone shows its start and its end more than its work. A chain holds many launches, each on its own
weights, with early start as in a real step; its time over their number is the kernel's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

Call = Callable[[], object]
LAUNCHES = 56
"""Of a chain, unless they are long."""
CHAIN_SECONDS = 1e-2
"""That a chain takes at most, if it has more launches than there are calls: a longer one would measure how a GPU
gets on at its limit of power, which the large product it is compared with does not reach."""
REPLAYS = 7
HOST_SECONDS = 0.02
"""That a measurement on the host takes at least."""


class Clock(Protocol):
    """Times a call."""

    def seconds(self, calls: Sequence[Call]) -> float:
        """Of one call, going through `calls` again and again; each must do the same work."""


class HostClock:
    """For backends that compute on the host: the median of some rounds."""

    def __init__(self, rounds: int = 5, least: float = HOST_SECONDS) -> None:
        self._rounds = rounds
        self._least = least

    def seconds(self, calls: Sequence[Call]) -> float:
        for call in calls[:2]:
            call()
        return statistics.median(self._round(calls) for _ in range(self._rounds))

    def _round(self, calls: Sequence[Call]) -> float:
        began, number = time.perf_counter(), 0
        while True:
            calls[number % len(calls)]()
            number += 1
            seconds = time.perf_counter() - began
            if seconds >= self._least:
                return seconds / number


class ChainClock:
    """For a GPU: the median replay of a graph."""

    def seconds(self, calls: Sequence[Call]) -> float:
        import cupy

        cupy.cuda.Device().synchronize()  # what was prepared on other streams
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            for call in calls[:2]:
                call()
            stream.synchronize()
            found = replayed(stream, calls, len(calls))
            length = chain_length(found, len(calls))
            return found if length == len(calls) else replayed(stream, calls, length)


def chain_length(seconds: float, calls: int) -> int:
    """Launches of a chain of so many different calls that take so long each."""
    return max(calls, min(LAUNCHES, int(CHAIN_SECONDS / max(seconds, 1e-9))))


def replayed(stream: object, calls: Sequence[Call], total: int) -> float:
    """Seconds a launch in a graph of `total` launches on the current stream."""
    from cupy.cuda import Event, get_elapsed_time

    recorded: object = stream
    recorded.begin_capture()  # type: ignore[attr-defined]
    try:
        for number in range(total):
            calls[number % len(calls)]()
    finally:
        graph = recorded.end_capture()  # type: ignore[attr-defined]
    graph.launch()
    times = []
    for _ in range(REPLAYS):
        start, end = Event(), Event()
        start.record()
        graph.launch()
        end.record()
        end.synchronize()
        times.append(get_elapsed_time(start, end) / 1e3)
    return float(statistics.median(times)) / total
