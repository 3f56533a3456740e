"""A client for load: one streamed completion over its own connection, with the time of everything that came.

Speaks just enough HTTP/1.1 for servers of OpenAI's API, with the standard library alone: what is measured
is the server, and a heavy client would be measured with it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
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


async def complete(target: Target, body: Mapping[str, Any], prompt_tokens: int) -> Answer:
    """Stream one completion; whatever goes wrong is in the answer."""
    answer = Answer(prompt_tokens, began=time.monotonic())
    try:
        async for event in _events(target, "/v1/completions", body):
            _take(answer, event)
        if answer.error is None and not answer.tokens:
            answer.error = "the answer ended without its usage"
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        answer.error = f"{type(error).__name__}: {error}"[:200]
    answer.ended = time.monotonic()
    return answer


async def get(target: Target, path: str) -> Any:
    """The JSON that a path answers with. Raises NetworkError."""
    try:
        reader, writer = await _ask(target, "GET", path, b"")
        try:
            status, headers = await _head(reader)
            data = b"".join([part async for part in _parts(reader, headers)])
        finally:
            writer.close()
        if status != 200:
            raise NetworkError(f"The server answers {path} with status {status}.")
        return json.loads(data)
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        raise NetworkError(
            f"The server at {target.host}:{target.port} does not answer.", hint="Is it running?"
        ) from error


def _take(answer: Answer, event: Any) -> None:
    if "error" in event:
        answer.error = str(event["error"].get("message", event["error"]))[:200]
    if event.get("choices") and (
        event["choices"][0].get("text") or not event["choices"][0].get("finish_reason")
    ):
        answer.arrivals.append(time.monotonic())
    if usage := event.get("usage"):
        answer.tokens = usage["completion_tokens"]
        answer.prompt_tokens = usage["prompt_tokens"]


async def _events(target: Target, path: str, body: Mapping[str, Any]) -> AsyncIterator[Any]:
    reader, writer = await _ask(target, "POST", path, json.dumps(body).encode())
    try:
        status, headers = await _head(reader)
        held = b""
        async for part in _parts(reader, headers):
            *blocks, held = (held + part).split(b"\n\n")
            if status != 200:
                held += b"\n\n".join(blocks)
                continue
            for block in blocks:
                if block.startswith(b"data: {"):
                    yield json.loads(block[6:])
        if status != 200:
            raise ValueError(f"status {status}: {held[:120]!r}")
    finally:
        writer.close()


async def _ask(
    target: Target, method: str, path: str, data: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(target.host, target.port)
    lines = [
        f"{method} {target.path}{path} HTTP/1.1",
        f"Host: {target.host}:{target.port}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        "Connection: close",
    ]
    lines += [f"Authorization: Bearer {target.key}"] if target.key else []
    writer.write("\r\n".join([*lines, "", ""]).encode() + data)
    return reader, writer


async def _head(reader: asyncio.StreamReader) -> tuple[int, Mapping[str, str]]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs: Sequence[tuple[str, str, str]] = [line.partition(":") for line in lines[1:] if line]
    return int(lines[0].split()[1]), {name.lower(): value.strip() for name, _, value in pairs}


async def _parts(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """The body as it comes, chunked or not."""
    if "chunked" not in headers.get("transfer-encoding", ""):
        while part := await reader.read(65536):
            yield part
        return
    while (size := int((await reader.readline()).split(b";")[0], 16)) > 0:
        yield await reader.readexactly(size)
        await reader.readexactly(2)
