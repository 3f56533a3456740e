"""The event loop's time in slices, so that many who want it at once do not make it late for everybody.

What one request needs of the loop is little; but sixty that arrive together, or get a token each from one step,
would hold it for the sum. So whoever has a piece of work to do asks for a turn first, and once a slice is used up the
loop looks at its clocks and sockets before the next begins. Work that is long by itself belongs in a thread.
"""

from __future__ import annotations

import asyncio

SLICE = 0.002
"""Seconds. A request passes through the loop some seven times before its first answer, a refusal too, so with 64
others under way it waits for about as many slices, each with what goes on beside them."""


class Pace:
    """Of one event loop; belongs to its thread."""

    def __init__(self) -> None:
        self._began = 0.0
        self._open = False

    def free(self) -> bool:
        """Whether a piece of work may begin now, rather than the next time round. The first of a slice may."""
        loop = asyncio.get_running_loop()
        if self._open:
            return loop.time() - self._began < SLICE
        self._open, self._began = True, loop.time()
        loop.call_soon(self._end)
        return True

    async def turn(self) -> None:
        """Wait until a piece of work may begin."""
        while not self.free():
            await asyncio.sleep(0)

    def _end(self) -> None:
        self._open = False
