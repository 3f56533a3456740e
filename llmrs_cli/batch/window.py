"""The rows that wait for room in the engine, and which of them goes next.

Rows go in input order, unless another shares a longer beginning with the row that went before: then its
prompt is found in the prefix cache while it is still there. Nobody is overtaken for ever: a row that was
read half a window before the latest one goes first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Generic, TypeVar

T = TypeVar("T")

GAIN = 64
"""Tokens that a row must share more than the oldest one does, to go before it: one block of any backend."""


class Pool(Generic[T]):
    """Things with a number and a prompt, in and out one at a time."""

    def __init__(self, window: int) -> None:
        """`window`: the distance in numbers between first and last that is looked at."""
        self._patience = max(window // 2, 1)
        self._things: dict[int, tuple[tuple[int, ...], T]] = {}
        """In the order of their numbers."""
        self._sorted: list[tuple[tuple[int, ...], int]] = []
        self._newest = 0
        self._last: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self._things)

    def add(self, number: int, prompt: tuple[int, ...], thing: T) -> None:
        """Numbers come in ascending order."""
        self._things[number] = prompt, thing
        self._newest = number
        insort(self._sorted, (prompt, number))

    def take(self) -> T:
        """Take the next one out; there must be one."""
        number = self._choose()
        self._last, thing = self._things.pop(number)
        del self._sorted[bisect_left(self._sorted, (self._last, number))]
        return thing

    def clear(self) -> None:
        """Forget them all."""
        self._things.clear()
        self._sorted.clear()

    def _choose(self) -> int:
        oldest = next(iter(self._things))
        if self._newest - oldest >= self._patience:
            return oldest
        place = bisect_left(self._sorted, (self._last, -1))
        shared, number = max(
            (shared_tokens(p, self._last), -n) for p, n in self._sorted[max(place - 1, 0) : place + 1]
        )
        return -number if shared >= shared_tokens(self._things[oldest][0], self._last) + GAIN else oldest


def shared_tokens(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Length of the longest common beginning."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
