"""A client for load: one streamed completion over its own connection, with the time of everything that came.

Speaks just enough HTTP/1.1 for servers of OpenAI's API, with the standard library alone and without a task
that wakes for each piece: what is measured is the server, and a heavy client would be measured with it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from llmrs_cli.errors import NetworkError, UsageError


@dataclass(frozen=True, slots=True)
class Target:
    """Where the server is."""

    host: str
    port: int
    path: str
    """Before /v1; usually empty."""
    key: str | None = None

    @classmethod
    def of(cls, url: str, key: str | None = None) -> Target:
        """Raises UsageError unless `url` is an http address."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise UsageError(f"{url!r} is not an address such as http://127.0.0.1:8000.")
        return cls(parts.hostname, parts.port or 80, parts.path.rstrip("/").removesuffix("/v1"), key)

    def request(self, method: str, path: str, data: bytes) -> bytes:
        """A whole request; the connection ends with its response."""
        lines = [
            f"{method} {self.path}{path} HTTP/1.1",
            f"Host: {self.host}:{self.port}",
            "Content-Type: application/json",
            f"Content-Length: {len(data)}",
            "Connection: close",
        ]
        lines += [f"Authorization: Bearer {self.key}"] if self.key else []
        return "\r\n".join([*lines, "", ""]).encode() + data


@dataclass(slots=True)
class Answer:
    """What one request came to; times in seconds of a monotonic clock."""

    prompt_tokens: int
    began: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    """Of each piece that held text or tokens."""
    ended: float = 0.0
    tokens: int = 0
    error: str | None = None
    status: int = 0
    """Of HTTP; 0 if there was no response."""
    text: str = ""


async def complete(target: Target, body: Mapping[str, Any], prompt_tokens: int) -> Answer:
    """Stream one completion; whatever goes wrong is in the answer."""
    answer = Answer(prompt_tokens, began=time.monotonic())
    events = _Events(answer)
    try:
        answer.status, rest = await _ask(target, "POST", "/v1/completions", json.dumps(body).encode(), events)
        if answer.status != 200:
            raise ValueError(f"status {answer.status}: {rest[:120]!r}")
        if answer.error is None and not (answer.tokens and events.ended):
            answer.error = f"the answer ended without its {'[DONE]' if answer.tokens else 'usage'}"
    except (OSError, ValueError) as error:
        answer.error = f"{type(error).__name__}: {error}"[:200]
    answer.ended = time.monotonic()
    return answer


async def get(target: Target, path: str, read: Callable[[bytes], Any] = json.loads) -> Any:
    """What a path answers with, as `read` reads it. Raises NetworkError."""
    try:
        status, data = await _ask(target, "GET", path, b"")
        if status != 200:
            raise NetworkError(f"The server answers {path} with status {status}.")
        return read(data)
    except (OSError, ValueError) as error:
        raise NetworkError(
            f"The server at {target.host}:{target.port} does not answer.", hint="Is it running?"
        ) from error


class _Events:
    """Takes the pieces of a stream of events as they come."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._held = b""
        self.ended = False
        """The last event, [DONE], has come."""

    def __call__(self, part: bytes) -> None:
        *blocks, self._held = (self._held + part).split(b"\n\n")
        for block in blocks:
            if block.startswith(b"data: {"):
                self._take(json.loads(block[6:]))
            self.ended = self.ended or block == b"data: [DONE]"

    def _take(self, event: Any) -> None:
        answer = self._answer
        if "error" in event:
            answer.error = str(event["error"].get("message", event["error"]))[:200]
        for choice in event.get("choices") or ():
            if choice.get("text") or not choice.get("finish_reason"):
                answer.arrivals.append(time.monotonic())
            answer.text += choice.get("text", "")
        if usage := event.get("usage"):
            answer.tokens = usage["completion_tokens"]
            answer.prompt_tokens = usage["prompt_tokens"]


class _Connection(asyncio.Protocol):
    """One request and its response, whose body goes to `take` piece by piece if its status is 200."""

    def __init__(self, request: bytes, take: Callable[[bytes], None]) -> None:
        self.status = 0
        self.done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        """What went wrong, if anything did."""
        self._request = request
        self._take = take
        self._buffer = b""
        self._chunked = self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            if not self.status:
                self._read_head()
            if self.status:
                self._read_body()
        except ValueError as error:
            self._end(error)

    def connection_lost(self, error: Exception | None) -> None:
        if self._chunked and not self._ended:
            error = error or ConnectionResetError("the answer was cut off")
        elif not self.status:
            error = error or ConnectionResetError("there was no answer")
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(error)

    def _read_head(self) -> None:
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if end:
            self._buffer = rest
            self._chunked = b"\r\ntransfer-encoding: chunked" in head.lower()
            self.status = int(head.split(None, 2)[1])

    def _read_body(self) -> None:
        """Hand over what is whole: chunks, or everything."""
        if not self._chunked:
            self._take(self._buffer)
            self._buffer = b""
            return
        buffer, at = self._buffer, 0
        while (line := buffer.find(b"\r\n", at)) >= 0:
            size = int(buffer[at:line].split(b";")[0], 16)
            start = line + 2
            if len(buffer) < start + size + 2:
                break
            self._take(buffer[start : start + size])
            at = start + size + 2
            if not size:
                self._ended = True
                self._end(None)
        self._buffer = buffer[at:]


async def _ask(
    target: Target, method: str, path: str, data: bytes, take: Callable[[bytes], None] | None = None
) -> tuple[int, bytes]:
    """The status, and the body unless `take` got it. Raises OSError or ValueError."""
    kept: list[bytes] = []
    connection: _Connection

    def sort(part: bytes) -> None:
        (take if take is not None and connection.status == 200 else kept.append)(part)

    loop = asyncio.get_running_loop()
    request = target.request(method, path, data)
    transport, connection = await loop.create_connection(
        lambda: _Connection(request, sort), target.host, target.port
    )
    try:
        if error := await connection.done:
            raise error
    finally:
        transport.abort()
    return connection.status, b"".join(kept)
