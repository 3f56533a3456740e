"""How many sequences may be under way at once, running and waiting, and how many of them one key's; more are refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from llmrs_cli.server.faults import overloaded


class Gate:
    """Belongs to the event loop's thread.

    While fewer than can run are under way, anybody may come. Beyond that each key has an equal share of the places, so
    that however much the others ask for, whoever asks for less finds one.
    """

    def __init__(self, room: int, running: int = 0, keys: int = 1) -> None:
        """`room`: places in all; `running`: how many sequences run at once; `keys`: who share them."""
        self._room, self._running = room, running
        self._share = max(1, room // max(1, keys))
        self._inside = 0
        self._of: Counter[bytes] = Counter()
        """Places that each caller holds."""

    def check(self, caller: bytes, more: int = 1) -> None:
        """Raise HttpError 429 unless there are so many places more for this caller."""
        inside = self._inside + more
        beyond = inside > self._running and self._of[caller] + more > self._share
        if inside > self._room or beyond:
            raise overloaded()

    @contextmanager
    def taken(self, caller: bytes) -> Iterator[Place]:
        """Hold one place, or as many as are asked for later. Raises HttpError 429 if it is not there."""
        place = Place(self, caller)
        try:
            place.hold(1)
            yield place
        finally:
            place.hold(0)

    def move(self, caller: bytes, more: int) -> None:
        """So many places more are held by this caller, or fewer."""
        self._inside += more
        self._of[caller] += more


class Place:
    """What one request holds of a gate."""

    def __init__(self, gate: Gate, caller: bytes) -> None:
        self._gate = gate
        self._caller = caller
        self._held = 0

    def hold(self, count: int) -> None:
        """Hold `count` in all. Raises HttpError 429 if they are not there, then nothing has changed."""
        more = count - self._held
        if more > 0:
            self._gate.check(self._caller, more)
        self._gate.move(self._caller, more)
        self._held = count
