"""One HTTP exchange: the body in, a whole answer or a stream of events out; knows no endpoint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from llmrs_cli.engine.types import FinishReason
from llmrs_cli.server.bridge import Answers, ClientGone, News, while_connected
from llmrs_cli.server.faults import HttpError, as_http, unavailable
from llmrs_cli.server.gate import Place
from llmrs_cli.server.security import CLOSE, Message, Receive, Scope, Send, send_json
from llmrs_cli.server.service import Service
from llmrs_cli.server.settings import BODY_SECONDS, STALL_SECONDS
from llmrs_cli.server.sse import DONE, decode_body, encode_parts, event

T = TypeVar("T")
LARGE = 8 * 1024
"""Bytes of a body that is not read in the event loop; this many take two milliseconds at worst."""
LITTLE = 8 * 1024
"""An answer of more than so much work is not written in the event loop; much of it has been written before."""
PIECE = 256 * 1024
"""Bytes of a whole response that are sent at a time, or as many as a part of it has."""
Chunks = Callable[[News], Sequence[Any]]
"""What a stream tells of some news."""


@dataclass(frozen=True, slots=True)
class Framing:
    """How the events of a stream are written."""

    named: bool
    """Each has its `type` beside its data."""
    end: bytes
    fault: Callable[[Any], Any]
    """OpenAI's error object → the event that tells of it."""

    def events(self, chunks: Iterable[Any]) -> bytes:
        """Chunks as they go over the wire."""
        return b"".join(event(chunk, chunk["type"] if self.named else None) for chunk in chunks)


PLAIN = Framing(named=False, end=DONE, fault=lambda body: body)
"""Of chats and completions."""


class Exchange:
    """One request and its response."""

    def __init__(self, service: Service, scope: Scope, receive: Receive, send: Send) -> None:
        self.service = service
        self.caller: bytes = scope["caller"]
        self._scope, self._receive, self._send = scope, receive, send
        self._began = time.monotonic()
        self._first: float | None = None
        self._last: float | None = None
        """When tokens first and last came."""
        self._first_tokens = 0
        self._started = False
        self._put: Callable[[bytes], bool] = scope["state"].get("put", _cannot_put)
        """Writes a piece of a body that has begun, without waiting; False if it cannot."""

    def parameter(self, name: str) -> str:
        """What stands in the path where its route has `name`."""
        return str(self._scope["path_params"][name])

    async def read(self, read: Callable[[Any], T]) -> T:
        """What `read` makes of the decoded body. Raises what it raises, RequestError if the body is no JSON,
        HttpError if it takes too long to come, ClientGone if it is cut off."""
        return await self._decoded(await self._body(), read)

    @asynccontextmanager
    async def admitted(self, read: Callable[[Any], T]) -> AsyncIterator[tuple[T, Place]]:
        """The same for a request that generates, with its place; one that finds none is refused before its
        body is waited for, or looked at."""
        self.service.check_room(self.caller)
        data = await self._body()
        with self.service.place(self.caller) as place:
            yield await self._decoded(data, read), place

    async def _decoded(self, data: bytes, read: Callable[[Any], T]) -> T:
        def decode() -> T:
            return read(decode_body(data))

        if len(data) > LARGE:
            return await self.service.in_thread(decode)
        await self.service.pace.turn()
        return decode()

    async def _body(self) -> bytes:
        pieces = []
        try:
            async with asyncio.timeout(BODY_SECONDS):
                more = True
                while more:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    pieces.append(message.get("body", b""))
                    more = message.get("more_body", False)
        except TimeoutError:
            raise HttpError(
                408, "The body did not arrive in time.", code="body_timeout", headers=CLOSE
            ) from None
        return b"".join(pieces)

    async def reply(self, body: Any) -> None:
        """A whole response."""
        await send_json(self._send, 200, body)

    async def text(self, data: bytes, kind: str, *more: tuple[str, str]) -> None:
        """A whole response of any kind, with `more` headers."""
        await self._whole([data], kind, *more)

    async def _whole(self, parts: Sequence[bytes], kind: str, *more: tuple[str, str]) -> None:
        """The same, of a body in parts. A client that does not read it is let go."""
        fields = [("content-type", kind), ("content-length", str(sum(map(len, parts)))), *more]
        headers = [(name.encode(), value.encode()) for name, value in fields]
        await self._tell_in_time({"type": "http.response.start", "status": 200, "headers": headers})
        for piece, more_body in _pieces(parts):
            await self._tell_in_time({"type": "http.response.body", "body": piece, "more_body": more_body})

    async def whole(self, answers: Answers, take: Chunks, body: Callable[[], Any]) -> None:
        """Gather everything, then send it; ends at once if the client leaves."""

        async def gather() -> None:
            while batch := await answers.news():
                self._observe(batch, answers)
                for news in batch:
                    take(news)

        def write() -> list[bytes]:
            return encode_parts(body())

        await while_connected(self._receive, gather())
        little = answers.work <= LITTLE
        parts = write() if little else await self.service.in_thread(write)
        await self._whole(parts, "application/json")

    async def stream(
        self,
        answers: Answers,
        take: Chunks,
        last: Callable[[], Iterable[Any]] = tuple,
        framing: Framing = PLAIN,
    ) -> None:
        """Server-sent events as they come, then those of `last`; a fault becomes an event of its own.

        The response begins with the first news, so that what fails before has a status of its own.
        """
        await while_connected(self._receive, self._tell(answers, take, last, framing))

    async def _tell(
        self, answers: Answers, take: Chunks, last: Callable[[], Iterable[Any]], framing: Framing
    ) -> None:
        try:
            while batch := await answers.news():
                self._observe(batch, answers)
                await self._write(framing.events(chunk for news in batch for chunk in take(news)))
            await self._write(framing.events(last()) + framing.end, more=False)
        except (ClientGone, asyncio.CancelledError):
            raise
        except Exception as error:
            if not self._started:
                raise
            await self._write(framing.events([framing.fault(as_http(error).body)]) + framing.end, more=False)

    async def _write(self, data: bytes, *, more: bool = True) -> None:
        if more and (not data or (self._started and self._put(data))):
            return
        await self._begin()
        await self._tell_in_time({"type": "http.response.body", "body": data, "more_body": more})

    async def _tell_in_time(self, message: Message) -> None:
        """Send a part of the response. Raises ClientGone if nobody reads it."""
        try:
            async with asyncio.timeout(STALL_SECONDS):
                await self._send(message)
        except TimeoutError:
            self._scope["state"]["abort"]()
            raise ClientGone from None

    async def _begin(self) -> None:
        if not self._started:
            self._started = True
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
            await self._tell_in_time({"type": "http.response.start", "status": 200, "headers": headers})

    def timings(self, answers: Answers) -> dict[str, float | None]:
        """Seconds from the request's arrival; tokens a second after the first, None if all came at once."""
        first, last = self._first or self._began, self._last or self._began
        more = answers.usage().completion_tokens - self._first_tokens
        return {
            "prepare_seconds": round(answers.began - self._began, 6),
            "first_token_seconds": round(first - self._began, 6),
            "total_seconds": round(last - self._began, 6),
            "tokens_per_second": round(more / (last - first), 2) if last > first else None,
        }

    def _observe(self, batch: list[News], answers: Answers) -> None:
        """Count what came; an answer that was cut short from here is an error to its client."""
        metrics, now = self.service.metrics, time.monotonic()
        if self._last is None:
            self._first, self._first_tokens = now, answers.usage().completion_tokens
            metrics.first_token.observe(now - self._began)
        else:
            metrics.between.observe(now - self._last)
        self._last = now
        ends = [news.finish_reason for _, news in batch if news.finish_reason is not None]
        if FinishReason.ABORT in ends:
            raise unavailable("The server is shutting down.", "shutting_down")
        if ends and answers.finished:
            metrics.whole.observe(now - self._began)
            usage = answers.usage()
            self._scope["figures"] = {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                **self.timings(answers),
            }


def _cannot_put(data: bytes) -> bool:
    return False


def _pieces(parts: Sequence[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Parts of a body, small ones together, each with whether there are more."""
    held: list[bytes] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= PIECE:
            yield b"".join(held), True
            held, size = [], 0
    yield b"".join(held), False
