"""Whose turn it is where only one can be served at a time: callers take turns, and each caller's requests go in the order
in which they came. So a caller with many slow requests waits for its own; everybody else waits for at most one of them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from llmrs_cli.server.faults import overloaded


class Turns:
    """Belongs to the event loop's thread."""

    def __init__(self, room: int) -> None:
        """`room`: how many of one caller may wait."""
        self._room = room
        self._busy = False
        self._lines: OrderedDict[bytes, deque[asyncio.Future[None]]] = OrderedDict()
        """Of each caller that waits; the first caller is next."""

    @asynccontextmanager
    async def taken(self, caller: bytes) -> AsyncIterator[None]:
        """Wait for a turn, and hold it. Raises HttpError 429 if too many of this caller wait."""
        if self._busy:
            await self._wait(caller)
        self._busy = True
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, caller: bytes) -> None:
        line = self._lines.setdefault(caller, deque())
        if len(line) >= self._room:
            raise overloaded()
        turn = asyncio.get_running_loop().create_future()
        line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """The turn is the next one's that still waits."""
        while self._lines:
            caller, line = self._lines.popitem(last=False)
            turn = _first(line)
            if line:
                self._lines[caller] = line
            if turn is not None:
                turn.set_result(None)
                return
        self._busy = False


def _first(line: deque[asyncio.Future[None]]) -> asyncio.Future[None] | None:
    """Out of a line: the first that has not left it."""
    while line:
        turn = line.popleft()
        if not turn.cancelled():
            return turn
    return None
