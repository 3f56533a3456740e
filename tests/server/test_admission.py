"""Who is let in is decided by counters: before a body is waited for, and again before it is looked at."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from llmrs_cli.server import connections, exchange
from llmrs_cli.server.service import Phase
from llmrs_cli.server.sse import encode_parts
from tests.helpers.bench import Bench, Client, Message
from tests.helpers.byte_tokenizer import byte_ids
from tests.helpers.fake_engine import reply
from tests.server.test_slow_clients import Raw, answered, request, serving, until

HELLO = tuple(byte_ids("hello"))
PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/responses")


def body(**fields: Any) -> dict[str, Any]:
    return {"prompt": "hi", "max_tokens": 5, **fields}


class Silent(Client):
    """Its header has come; its body never does."""

    async def receive(self) -> Message:
        raise AssertionError("nobody may wait for this body")


def full(bench: Bench) -> None:
    """Four rows and no queue: four requests that wait for their tokens."""
    for _ in range(4):
        bench.ask(Client(body(stream=True)))


@pytest.mark.parametrize("path", PATHS)
def test_where_all_places_are_taken_a_header_is_enough_to_be_refused(path: str) -> None:
    async def scene() -> Client:
        bench = Bench(reply(HELLO), at_once=False, queue=0)
        full(bench)
        await until(lambda: len(bench.engine.requests) == 4)
        late = Silent({}, path)
        await bench.ask(late)
        while bench.engine.busy:
            bench.engine.play()
        await bench.service.idle.wait()
        return late

    late = asyncio.run(scene())
    assert (late.status, late.json["error"]["code"]) == (429, "overloaded")
    assert (b"retry-after", b"1") in late.sent[0]["headers"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("phase", [Phase.LOADING, Phase.DRAINING, Phase.FAILED])
def test_outside_of_its_time_a_server_waits_for_no_body(path: str, phase: Phase) -> None:
    async def scene() -> Client:
        bench = Bench(reply(HELLO))
        bench.service.phase = phase
        early = Silent({}, path)
        await bench.ask(early)
        return early

    assert asyncio.run(scene()).status == 503


def test_of_those_who_came_together_no_body_is_decoded_that_finds_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded = []

    def count(data: bytes) -> Any:
        decoded.append(data)
        return json.loads(data)

    monkeypatch.setattr(exchange, "decode_body", count)

    async def scene() -> list[int | None]:
        bench = Bench(reply(HELLO), queue=2)
        clients = [Client(body()) for _ in range(10)]
        await asyncio.gather(*map(bench.ask, clients))
        assert bench.service.idle.is_set()
        return [client.status for client in clients]

    statuses = asyncio.run(scene())
    assert (statuses.count(200), statuses.count(429), len(decoded)) == (6, 4, 6)


def test_a_body_that_is_slow_to_come_holds_no_place() -> None:
    async def scene() -> None:
        async with serving(reply(HELLO)) as (bench, port), Raw(port) as slow:
            await slow.send(request(body())[:-1])
            await asyncio.sleep(0.01)
            assert bench.service.idle.is_set()
            assert await answered(port)

    asyncio.run(scene())


@pytest.mark.parametrize("size", [10, exchange.LARGE + 1])
def test_a_large_body_is_read_beside_the_event_loop(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []

    def note(data: bytes) -> Any:
        names.append(threading.current_thread().name)
        return json.loads(data)

    monkeypatch.setattr(exchange, "decode_body", note)

    async def scene() -> Client:
        client = Client(body(user="u" * size))
        await Bench(reply(HELLO)).ask(client)
        return client

    assert asyncio.run(scene()).status == 200
    assert names[0].startswith("llmrs-text") == (size > exchange.LARGE)


@pytest.mark.parametrize("tokens", [5, exchange.LITTLE + 1])
def test_a_long_answer_is_written_beside_the_event_loop(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []

    def note(value: Any) -> list[bytes]:
        names.append(threading.current_thread().name)
        return encode_parts(value)

    monkeypatch.setattr(exchange, "encode_parts", note)

    async def scene() -> Client:
        client = Client(body())
        await Bench(reply(HELLO[:1] * tokens)).ask(client)
        return client

    client = asyncio.run(scene())
    assert client.json["choices"][0]["text"] == "h" * tokens
    assert [name.startswith("llmrs-text") for name in names] == [tokens > exchange.LITTLE]


# -- what a client sees that sends first and reads then ---------------------------------------------------


def test_a_client_that_is_refused_may_send_its_whole_body_and_then_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MAX_BODY", 2**21)

    async def scene() -> bytes:
        async with serving(reply(HELLO), at_once=False) as (bench, port), Raw(port) as client:
            with bench.service.place() as place:
                place.hold(260)
                await client.send(request(body(user="u" * 2**20)))
                refusal = await client.read_some()
            bench.engine.play()
            await client.send(request(body(), "Connection: close"))  # the connection is as good as new
            await bench.until_asked()
            bench.engine.play()
            return refusal + await client.read()

    told = asyncio.run(scene())
    assert told.startswith(b"HTTP/1.1 429 ")
    assert b"\r\nretry-after: 1\r\n" in told
    assert b"HTTP/1.1 200 " in told


def test_a_refused_body_without_an_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_BODY", 2**18)

    async def scene() -> None:
        async with serving(reply(HELLO)) as (bench, port), Raw(port) as client:
            with bench.service.place() as place:
                place.hold(260)
                head = request(body()).partition(b"Content-Length")[0]
                await client.send(head + b"Transfer-Encoding: chunked\r\n\r\n")
                with pytest.raises(ConnectionError):
                    for _ in range(1000):
                        await client.send(b"4000\r\n" + b"a" * 0x4000 + b"\r\n")
                        await asyncio.sleep(0)
            assert await answered(port)

    asyncio.run(scene())
