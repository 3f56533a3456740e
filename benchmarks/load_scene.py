"""What load targets share: how much of everything, what one came to, requests of a small model, clients that leave."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.watched_server import NAME, Setup, Watched
from llmrs_cli.server.load_client import Answer, complete

MIB = 2**20
ROUNDS = 3
"""Of those that measure milliseconds."""


@dataclass
class Result:
    """What one target came to."""

    figures: dict[str, Any] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)

    def bound(self, name: str, value: float, most: float) -> None:
        """A figure that may be at most so large."""
        self.figures[name] = round(value, 3)
        if not value <= most:
            self.missed.append(f"{name} is {value:.3f}, at most {most:g}")


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    small: bool
    folder: str
    device: str
    long: bool = False

    def of(self, whole: int, part: int, long: int = 0) -> int:
        """So much as a whole, in small, and at night (0: as a whole)."""
        return part if self.small else long if self.long and long else whole

    def setup(self, rows: int, queue: int = 1024, context: int | None = None) -> Setup:
        return Setup(self.folder, self.device, rows, context, queue)

    def timed(self, result: Result, name: str, value: float | Sequence[float], most: float) -> None:
        """A bound on a time, or on the median of several, each of which is told as well. Only told in small,
        where it is the machine that is measured."""
        if not isinstance(value, float):
            result.figures[f"{name}_each"] = [round(one, 3) for one in value]
            value = statistics.median(value)
        result.bound(name, value, float("inf") if self.small else most)


def body(prompt: Sequence[int], tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "model": NAME,
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }


def prompts(count: int, length: int, seed: float = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(256) for _ in range(length)] for _ in range(count)]


async def ask(server: Watched, given: dict[str, Any]) -> Answer:
    return await complete(server.target, given, len(given["prompt"]))


async def at_once(limit: int, works: Sequence[Callable[[], Awaitable[Answer | None]]]) -> list[Answer | None]:
    """All of them, at most `limit` under way."""
    room = asyncio.Semaphore(limit)

    async def one(work: Callable[[], Awaitable[Answer | None]]) -> Answer | None:
        async with room:
            return await work()

    return await asyncio.gather(*(one(work) for work in works))


async def leaving(server: Watched, given: dict[str, Any], after: float) -> None:
    """A request whose client leaves after some seconds."""
    try:
        await asyncio.wait_for(ask(server, given), after)
    except TimeoutError:
        return
