"""Between the engine's token events and one HTTP request: in the event loop, without waiting for anybody.

Events of the engine gather here while a client is written to; what has gathered is handed over at once,
so a slow client gets larger pieces and costs nobody else anything. A client that does not read at all is
let go after a while; one that has left is noticed whether or not anything is being written to it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from functools import partial
from typing import Any, TypeVar

from llmrs_cli.engine.types import FinishReason, TokenEvent, entries, joined, split
from llmrs_cli.server.faults import HttpError
from llmrs_cli.server.pace import Pace
from llmrs_cli.text.events import TextEvent, Usage
from llmrs_cli.text.generate import GenerateOptions, Generation, TextEngine

T = TypeVar("T")
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
News = tuple[int, TextEvent]
"""Which of several prompts, and what happened to it."""

MAX_EVENTS = 256
"""Token events of one request that wait for its client one by one; then they become one for each choice."""
MAX_UNREAD = 2**20
"""Bytes of a choice that may wait for its client, as `_bytes` estimates them. At this, and not at so many events,
it is let go: eight choices at 3 ms a step make 256 events in a tenth of a second, less than a lost packet costs.
Scores of a prompt come once, and are bounded as those of a request are (`budget`)."""
PORTION = 512
"""What is worked on at a turn, as `_work` counts it: two milliseconds or so."""
EVENT_WORK = 16
TOKEN_BYTES, SCORE_BYTES = 40, 120
"""What Python takes for a token, and for a token with its log-probability."""


class ClientGone(Exception):
    """The client closed its connection, or does not read."""


class Answers:
    """The answers to the prompts of one HTTP request. Whoever made it cancels it in the end."""

    def __init__(self, patience: float, pace: Pace) -> None:
        """`patience`: seconds to wait for the next token; `pace`: when to work on those that came."""
        self._gathered: list[tuple[int, TokenEvent]] = []
        self._pieces: deque[tuple[int, TokenEvent]] = deque()
        """Of what had gathered: what is left to work on."""
        self._pace = pace
        self.work = 0
        """What has been worked on so far, as `_work` counts it."""
        self._arrived = asyncio.Event()
        self._overrun = False
        self._clock = Clock(patience, self._arrived.set)
        self._patience = patience
        self.began = time.monotonic()
        self.generations: list[Generation] = []

    def begin(self, engine: TextEngine, prompt: Sequence[int], options: GenerateOptions, salt: str) -> None:
        """Begin to answer one more prompt. Raises as `TextEngine.start` does."""
        sink = partial(self._gather, len(self.generations))
        self.generations.append(engine.start(prompt, options, salt=salt, sink=sink, keeps=False))

    @property
    def finished(self) -> bool:
        """Every answer has ended."""
        return all(generation.finished for generation in self.generations)

    async def news(self) -> list[News]:
        """What has happened since the last time, as soon as there is something; nothing if all have ended. Of much
        that has happened it is no more than a turn has time for.

        Raises LlmrsError if one ends by a fault, HttpError if nothing comes for too long, ClientGone if far
        more gathers than a client that reads would leave.
        """
        told: list[News] = []
        while not told and not self.finished:
            if not (self._pieces or self._gathered):
                await self._wait()
            await self._pace.turn()
            self._arrived.clear()
            if self._overrun:
                raise ClientGone
            told = [news for item in self._portion() if (news := self._take(*item))]
        return told

    def _portion(self) -> list[tuple[int, TokenEvent]]:
        """What to work on now."""
        if not self._pieces:
            gathered, self._gathered = self._gathered, []
            self._pieces.extend(
                (i, piece) for i, event in _together(gathered) for piece in split(event, PORTION)
            )
        portion, work = [], 0
        while self._pieces and work < PORTION:
            portion.append(self._pieces.popleft())
            work += _work(portion[-1][1])
        self.work += work
        return portion

    def reasons(self) -> list[FinishReason]:
        """Why each answer that was begun has ended, or is ended now."""
        found = (reason for generation in self.generations for reason in generation.reasons)
        return [reason or FinishReason.ABORT for reason in found]

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
        self._clock.stop()
        for generation in self.generations:
            generation.cancel()

    async def _wait(self) -> None:
        self._clock.start()
        await self._arrived.wait()
        self._clock.pause()
        if not (self._gathered or self._overrun):
            raise HttpError(503, f"Nothing came for {self._patience:g} seconds.", code="deadline_exceeded")

    def _gather(self, index: int, event: TokenEvent) -> None:
        if not self._overrun:
            self._gathered.append((index, event))
            if len(self._gathered) >= MAX_EVENTS:
                self._fold()
        self._arrived.set()

    def _fold(self) -> None:
        """Make what has gathered small; if it is too much even so, nobody reads it, and it ends."""
        self._gathered = list(_together(self._gathered))
        if sum(_bytes(event) for _, event in self._gathered) > MAX_UNREAD * len(self._gathered):
            self._overrun = True
            self._gathered.clear()
            asyncio.get_running_loop().call_soon(self.cancel)

    def _take(self, index: int, event: TokenEvent) -> News | None:
        news = self.generations[index].take(event)
        return None if news is None else (index, news)


class Clock:
    """Calls back when a wait has lasted too long. Its timer looks at the time only when it goes off, so a wait
    that ends in time, as there is one for each token, costs next to nothing."""

    def __init__(self, seconds: float, ran_out: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._ran_out = ran_out
        self._since = math.inf
        """When the wait began; never, if there is none."""
        self._timer = self._loop.call_later(seconds, self._look)

    def start(self) -> None:
        """A wait begins."""
        self._since = self._loop.time()

    def pause(self) -> None:
        """It has ended."""
        self._since = math.inf

    def stop(self) -> None:
        """There will be no more."""
        self._timer.cancel()

    def _look(self) -> None:
        left = self._since + self._seconds - self._loop.time()
        if left <= 0:
            self._ran_out()
        else:
            self._timer = self._loop.call_later(min(left, self._seconds), self._look)


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


def _together(gathered: Sequence[tuple[int, TokenEvent]]) -> Iterable[tuple[int, TokenEvent]]:
    """Events of one choice that have gathered become one: whatever follows is done once for all of them."""
    if len(gathered) == 1:
        return gathered
    choices: dict[str, tuple[int, list[TokenEvent]]] = {}
    for index, event in gathered:
        choices.setdefault(event.request_id, (index, []))[1].append(event)
    return [(index, joined(events)) for index, events in choices.values()]


def _work(event: TokenEvent) -> int:
    """How long an event takes, nearly, in times of a log-probability: some microseconds."""
    return EVENT_WORK + len(event.tokens) + entries(event)


def _bytes(event: TokenEvent) -> int:
    """What an event takes, nearly: its tokens, and their scores with the alternatives to each."""
    scores = sum(1 + len(score.top) for score in event.logprobs)
    return TOKEN_BYTES * len(event.tokens) + SCORE_BYTES * scores
