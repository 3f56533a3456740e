"""Between the engine's token events and one HTTP request: in the event loop, without waiting for anybody.

Events of the engine gather here while a client is written to; what has gathered is handed over at once,
so a slow client gets larger pieces and costs nobody else anything. A client that does not read at all is
let go after a while; one that has left is noticed whether or not anything is being written to it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from llmrs_cli.engine.types import TokenEvent
from llmrs_cli.server.faults import HttpError, overloaded
from llmrs_cli.text.events import TextEvent, Usage
from llmrs_cli.text.generate import GenerateOptions, Generation, TextEngine

T = TypeVar("T")
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
News = tuple[int, TextEvent]
"""Which of several prompts, and what happened to it."""

MAX_GATHERED = 16_384
"""Token events of one request that may wait for its client."""


class ClientGone(Exception):
    """The client closed its connection, or does not read."""


class Answers:
    """The answers to the prompts of one HTTP request."""

    def __init__(
        self, engine: TextEngine, prompts: Sequence[Sequence[int]], options: GenerateOptions, salt: str
    ) -> None:
        """Begin all of them; raises as `TextEngine.start` does, then none is left."""
        self._gathered: deque[tuple[int, TokenEvent]] = deque()
        self._arrived = asyncio.Event()
        self._overrun = False
        self.began = time.monotonic()
        self.generations: list[Generation] = []
        try:
            for index, prompt in enumerate(prompts):
                sink = partial(self._gather, index)
                self.generations.append(engine.start(prompt, options, salt=salt, sink=sink))
        except BaseException:
            self.cancel()
            raise

    @property
    def finished(self) -> bool:
        """Every answer has ended."""
        return all(generation.finished for generation in self.generations)

    async def batches(self, patience: float) -> AsyncIterator[list[News]]:
        """What has happened since the last batch, until all have ended.

        Raises LlmrsError if one ends by a fault, HttpError after `patience` seconds without news,
        ClientGone if far more gathers than a client that reads would leave.
        """
        while not self.finished:
            try:
                if not self._gathered:
                    async with asyncio.timeout(patience):
                        await self._arrived.wait()
            except TimeoutError:
                raise HttpError(
                    503, f"Nothing came for {patience:g} seconds.", code="deadline_exceeded"
                ) from None
            self._arrived.clear()
            if self._overrun:
                raise ClientGone
            if batch := _merged(news for news in map(self._take, _drained(self._gathered)) if news):
                yield batch

    def usage(self) -> Usage:
        """Tokens of all answers so far."""
        each = [generation.usage() for generation in self.generations]
        return Usage(
            sum(usage.prompt_tokens for usage in each),
            sum(usage.completion_tokens for usage in each),
            sum(usage.cached_tokens for usage in each),
        )

    def cancel(self) -> None:
        """End what still runs."""
        for generation in self.generations:
            generation.cancel()

    def _gather(self, index: int, event: TokenEvent) -> None:
        self._overrun = self._overrun or len(self._gathered) >= MAX_GATHERED
        if not self._overrun or event.finish is not None:
            self._gathered.append((index, event))
        self._arrived.set()

    def _take(self, item: tuple[int, TokenEvent]) -> News | None:
        index, event = item
        news = self.generations[index].take(event)
        return None if news is None else (index, news)


class Gate:
    """How many may be under way at once, running and waiting; who comes after that is refused."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.inside = 0

    @contextmanager
    def taken(self, count: int) -> Iterator[None]:
        """Hold `count` places. Raises HttpError 429 if they are not there."""
        if self.inside + count > self.room:
            raise overloaded()
        self.inside += count
        try:
            yield
        finally:
            self.inside -= count


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; cancels it and raises ClientGone as soon as the client has left."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    """Returns when the client has left; the body has been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _merged(news: Iterable[News]) -> list[News]:
    """Events of one choice that came together become one."""
    merged: dict[tuple[int, int], News] = {}
    for index, event in news:
        key = index, event.choice
        merged[key] = (index, _joined(merged[key][1], event) if key in merged else event)
    return list(merged.values())


def _joined(first: TextEvent, then: TextEvent) -> TextEvent:
    return replace(
        then,
        text=first.text + then.text,
        token_ids=first.token_ids + then.token_ids,
        logprobs=first.logprobs + then.logprobs,
    )


def _drained(items: deque[T]) -> Sequence[T]:
    taken = tuple(items)
    items.clear()
    return taken
