"""Clients over real sockets that send slowly, or read slowly, or not at all: they cost nobody else anything."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from llmrs_cli.engine.types import FinishReason, Request, TokenEvent
from llmrs_cli.server import bridge, connections, exchange, settings
from llmrs_cli.server.connections import http_server
from llmrs_cli.server.run import listen
from tests.helpers.bench import Bench
from tests.helpers.byte_tokenizer import byte_ids
from tests.helpers.fake_engine import Script, reply

HELLO = tuple(byte_ids("hello"))
LINE = tuple(byte_ids("0123456789abcdef" * 512))
LINES = 60
"""Together more than any buffer between two processes of a test holds."""


@asynccontextmanager
async def serving(script: Script, *, at_once: bool = True) -> AsyncIterator[tuple[Bench, int]]:
    """A server over a scripted engine, with small buffers, and its port."""
    bench = Bench(script, at_once=at_once)
    with listen("127.0.0.1", 0) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        server = http_server(bench.app)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield bench, listener.getsockname()[1]
        finally:
            server.should_exit = True
            await running
            bench.service.close()


class Raw:
    """A client that reads only when it is told to."""

    def __init__(self, port: int) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._port = port

    async def __aenter__(self) -> Raw:
        await self._loop.sock_connect(self._socket, ("127.0.0.1", self._port))
        return self

    async def __aexit__(self, *error: object) -> None:
        self._socket.close()

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._socket, data)

    async def drip(self, data: bytes) -> None:
        """A byte at a time, until the other side has had enough."""
        with contextlib.suppress(OSError):
            for i in range(len(data)):
                await self.send(data[i : i + 1])
                await asyncio.sleep(0.02)

    async def read(self) -> bytes:
        """Everything, to the end of the connection."""
        seen = b""
        with contextlib.suppress(ConnectionError):
            while part := await asyncio.wait_for(self._loop.sock_recv(self._socket, 65536), 60):
                seen += part
        return seen

    async def read_some(self) -> bytes:
        """What is there, as soon as something is."""
        return await asyncio.wait_for(self._loop.sock_recv(self._socket, 65536), 60)

    def stop_sending(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)


def request(body: Any, *more: str) -> bytes:
    data = json.dumps(body).encode()
    head = ["POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json", *more]
    return "\r\n".join([*head, f"Content-Length: {len(data)}", "", ""]).encode() + data


PLAIN = request({"prompt": "hi", "max_tokens": 5}, "Connection: close")


async def answered(port: int) -> bool:
    """Whether a plain request gets its answer."""
    async with Raw(port) as client:
        await client.send(PLAIN)
        return b'"text":"hello"' in await client.read()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "HEADER_SECONDS", 0.2)
    monkeypatch.setattr(exchange, "BODY_SECONDS", 0.2)


HEAD = b"GET /version HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    "before",
    [b"", b"GET", HEAD, HEAD + b"\r\n"],
    ids=["nothing sent", "begun", "no end", "after a request"],
)
def test_a_header_that_takes_too_long_ends_its_connection(before: bytes) -> None:
    async def scene() -> None:
        async with serving(reply(HELLO)) as (_, port), Raw(port) as slow:
            await slow.send(before)
            dripping = asyncio.create_task(slow.drip(b"X-Header: " + b"a" * 5000))
            assert await answered(port)
            assert (b"200" in await slow.read()) == before.endswith(b"\r\n\r\n")
            await dripping

    asyncio.run(scene())


@pytest.mark.usefixtures("hasty")
def test_a_client_that_sends_nothing_is_not_kept() -> None:
    async def scene() -> bytes:
        async with serving(reply(HELLO)) as (_, port), Raw(port) as silent:
            return await silent.read()

    assert asyncio.run(scene()) == b""


@pytest.mark.usefixtures("hasty")
def test_a_body_that_takes_too_long_is_refused() -> None:
    async def scene() -> bytes:
        async with serving(reply(HELLO)) as (bench, port), Raw(port) as slow:
            head, _, body = request({"prompt": "hi" * 2000}).partition(b"\r\n\r\n")
            await slow.send(head + b"\r\n\r\n")
            dripping = asyncio.create_task(slow.drip(body))
            assert await answered(port)
            told = await slow.read()
            await dripping
            assert len(bench.engine.requests) == 1
            return told

    told = asyncio.run(scene())
    assert told.startswith(b"HTTP/1.1 408 ")
    assert b"body_timeout" in told


@pytest.mark.usefixtures("hasty")
def test_a_body_that_nobody_waits_for_ends_its_connection() -> None:
    async def scene() -> bytes:
        async with serving(reply(HELLO)) as (_, port), Raw(port) as slow:
            await slow.send(HEAD + b"Content-Length: 5000\r\n\r\n")
            dripping = asyncio.create_task(slow.drip(b"a" * 5000))
            told = await slow.read()
            await dripping
            return told

    assert asyncio.run(scene()).startswith(b"HTTP/1.1 200 ")


def test_more_connections_than_may_be_are_refused_until_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)

    async def scene() -> None:
        async with serving(reply(HELLO)) as (_, port):
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(3):
                    await (await stack.enter_async_context(Raw(port))).send(HEAD)
                async with Raw(port) as late:
                    await late.send(PLAIN)
                    assert (await late.read()).startswith(b"HTTP/1.1 503 ")
            for _ in range(100):
                if await answered(port):
                    return
                await asyncio.sleep(0.01)
            pytest.fail("the others ended, and nobody is let in")

    asyncio.run(scene())


def lines(asked: Request) -> list[TokenEvent]:
    """Much text for those who ask for much, "hello" for others."""
    if asked.params.max_tokens < 10:
        return [TokenEvent(asked.id, HELLO, finish=FinishReason.LENGTH)]
    ends = [None] * (LINES - 1) + [FinishReason.LENGTH]
    return [TokenEvent(asked.id, LINE, finish=finish) for finish in ends]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


MUCH = request({"prompt": "hi", "max_tokens": 50, "stream": True}, "Connection: close")


def told_text(data: bytes) -> str:
    """The text of a stream that came whole."""
    stream = data.split(b"\r\n\r\n", 1)[1].decode()
    blocks = [line[6:] for line in stream.splitlines() if line.startswith("data: ")]
    assert blocks[-1] == "[DONE]"
    return "".join(json.loads(block)["choices"][0]["text"] for block in blocks[:-1])


def test_a_reader_that_pauses_is_waited_for_and_misses_nothing() -> None:
    async def scene() -> str:
        async with serving(lines, at_once=False) as (bench, port), Raw(port) as reader:
            await reader.send(MUCH)
            await bench.until_asked()
            while bench.engine.busy:
                bench.engine.play()
                await asyncio.sleep(0.001)
            assert not bench.service.idle.is_set()  # more is left than the buffers hold
            return told_text(await reader.read())

    assert asyncio.run(scene()) == "0123456789abcdef" * 512 * LINES


def test_readers_that_do_not_read_are_let_go_and_nobody_else_is_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange, "STALL_SECONDS", 0.3)

    async def scene() -> None:
        async with serving(lines, at_once=False) as (bench, port), contextlib.AsyncExitStack() as stack:
            stalled = [await stack.enter_async_context(Raw(port)) for _ in range(20)]
            for client in stalled:
                await client.send(MUCH)
            await until(lambda: len(bench.engine.requests) == 20)
            for _ in range(LINES - 1):
                bench.engine.play()
                await asyncio.sleep(0.001)
            live = asyncio.create_task(answered(port))
            await until(lambda: len(bench.engine.requests) == 21)
            await until(lambda: len(bench.engine.aborted) == 20)
            bench.engine.play()
            assert await live
            await asyncio.wait_for(bench.service.idle.wait(), 60)

    asyncio.run(scene())


def test_an_unread_answer_cannot_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "MAX_UNREAD", 40_000 * bridge.TOKEN_BYTES)
    monkeypatch.setattr(bridge, "MAX_EVENTS", 20)

    async def scene() -> None:
        async with serving(lines) as (bench, port), Raw(port) as stalled:
            await stalled.send(MUCH)
            await until(lambda: bool(bench.engine.requests))
            await asyncio.wait_for(bench.service.idle.wait(), 60)

    asyncio.run(scene())


def test_a_client_that_stops_sending_has_left() -> None:
    async def scene() -> list[str]:
        async with serving(lines, at_once=False) as (bench, port), Raw(port) as client:
            await client.send(MUCH)
            await bench.until_asked()
            client.stop_sending()
            await asyncio.wait_for(bench.service.idle.wait(), 60)
            return bench.engine.aborted

    assert len(asyncio.run(scene())) == 1
