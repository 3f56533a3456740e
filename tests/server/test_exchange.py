"""One exchange with a scripted engine, in this process: faults, stalls and departures at every moment."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator
from typing import Any

import pytest

from llmrs_cli.engine.types import FinishReason, Request, TokenEvent, TokenLogprob
from llmrs_cli.errors import EngineFault
from llmrs_cli.server import bridge, exchange
from llmrs_cli.server.service import Phase
from llmrs_cli.text.events import LogProb
from tests.helpers.bench import Bench, Client
from tests.helpers.byte_tokenizer import byte_ids
from tests.helpers.fake_engine import reply

HELLO = tuple(byte_ids("hello"))


def body(**fields: Any) -> dict[str, Any]:
    return {"prompt": "hi", "max_tokens": 5, **fields}


def test_what_has_gathered_is_one_event() -> None:
    async def scene() -> str:
        bench = Bench(reply(HELLO[:2], HELLO[2:]))
        client = Client(body(stream=True))
        await bench.ask(client)
        return client.text

    events = [json.loads(block[6:]) for block in asyncio.run(scene()).split("\n\n")[:-2]]
    assert [event["choices"][0]["text"] for event in events] == ["hello"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_is_noticed_though_nothing_is_sent(stream: bool) -> None:
    async def scene() -> Bench:
        bench = Bench(reply(HELLO), at_once=False)
        client = Client(body(stream=stream))
        task = bench.ask(client)
        await bench.until_asked()
        client.left.set()
        await task
        assert client.sent == []
        assert bench.service.idle.is_set()
        return bench

    bench = asyncio.run(scene())
    assert bench.engine.aborted == [request.id for request in bench.engine.requests]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("steps", range(len(HELLO) + 1))
def test_a_client_may_leave_after_any_step(stream: bool, steps: int) -> None:
    async def scene() -> None:
        bench = Bench(reply(*((token,) for token in HELLO)), at_once=False)
        leaving, staying = Client(body(stream=stream)), Client(body())
        tasks = [bench.ask(leaving), bench.ask(staying)]
        while len(bench.engine.requests) < 2:
            await asyncio.sleep(0.001)
        for _ in range(steps):
            bench.engine.play()
            await asyncio.sleep(0)
        leaving.left.set()
        await tasks[0]
        finished = steps == len(HELLO)
        assert len(bench.engine.aborted) == (0 if finished else 1)
        while bench.engine.busy:
            bench.engine.play()
        await tasks[1]
        assert staying.json["choices"][0]["text"] == "hello"
        assert bench.service.idle.is_set()

    asyncio.run(scene())


def test_a_client_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "STALL_SECONDS", 0.01)

    async def scene() -> None:
        bench = Bench(reply(HELLO[:1], HELLO[1:]), at_once=False)
        client = Client(body(stream=True))
        client.reads.clear()
        task = bench.ask(client)
        await bench.until_asked()
        bench.engine.play()
        await task
        assert client.cut_off
        assert bench.engine.aborted
        assert bench.service.idle.is_set()

    asyncio.run(scene())


def test_far_more_than_a_client_reads_does_not_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "MAX_EVENTS", 3)
    monkeypatch.setattr(bridge, "MAX_UNREAD", 2 * bridge.TOKEN_BYTES)

    def endless(request: Request) -> list[TokenEvent]:
        ends = [None] * 8 + [FinishReason.LENGTH]
        return [TokenEvent(request.id, HELLO[:1], finish=finish) for finish in ends]

    async def scene() -> None:
        bench = Bench(endless)
        client = Client(body(stream=True))
        await bench.ask(client)
        assert client.sent == []
        assert bench.engine.aborted

    asyncio.run(scene())


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_keeps_no_scores_that_it_has_told(path: str) -> None:
    rounds = 60
    asked: dict[str, Any] = (
        {"logprobs": 2} if path == "/v1/completions" else {"logprobs": True, "top_logprobs": 2}
    )
    asked |= (
        {"prompt": "hi"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
    )

    def scored(request: Request) -> Iterator[TokenEvent]:
        scores = (TokenLogprob(HELLO[0], -1.0, ((HELLO[1], -1.0), (HELLO[2], -2.0))),)
        for i in range(rounds):
            yield TokenEvent(
                request.id, HELLO[:1], scores, finish=FinishReason.LENGTH if i == rounds - 1 else None
            )

    async def scene() -> None:
        bench = Bench(scored, at_once=False)
        client = Client({"stream": True, "max_tokens": 50, **asked}, path)
        task = bench.ask(client)
        await bench.until_asked()
        for _ in range(rounds - 1):
            bench.engine.play()
            await asyncio.sleep(0)
        while client.text.count('"top_logprobs"') < rounds - 1:
            await asyncio.sleep(0.001)
        assert sum(isinstance(value, LogProb) for value in gc.get_objects()) < 20
        bench.engine.play()
        await task

    asyncio.run(scene())


def test_nothing_for_too_long_is_an_error() -> None:
    async def scene() -> None:
        bench = Bench(reply(HELLO), at_once=False, deadline=0.01)
        client = Client(body())
        await bench.ask(client)
        assert client.status == 503
        assert json.loads(client.text)["error"]["code"] == "deadline_exceeded"
        assert bench.engine.aborted

    asyncio.run(scene())


def failed(request: Request) -> list[TokenEvent]:
    return [
        TokenEvent(request.id, HELLO[:1]),
        TokenEvent(request.id, finish=FinishReason.ERROR, error="It was not a number.", code="numeric"),
    ]


def test_a_request_that_fails_says_so_whole_and_streamed() -> None:
    async def scene() -> tuple[Client, Client, Client]:
        bench = Bench(failed, at_once=False)
        whole, streamed = Client(body()), Client(body(stream=True))
        tasks = [bench.ask(whole), bench.ask(streamed)]
        while len(bench.engine.requests) < 2:
            await asyncio.sleep(0.001)
        bench.engine.play()
        await asyncio.sleep(0.01)
        bench.engine.play()
        await asyncio.gather(*tasks)
        other = Bench(reply(HELLO))
        after = Client(body())
        await other.ask(after)
        return whole, streamed, after

    whole, streamed, after = asyncio.run(scene())
    assert (whole.status, json.loads(whole.text)["error"]["code"]) == (500, "numeric")
    *_, error, done, end = streamed.text.split("\n\n")
    told = json.loads(error[6:])["error"]
    assert (told["message"], told["code"]) == ("It was not a number.", "numeric")
    assert (done, end) == ("data: [DONE]", "")
    assert after.status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_an_exception_of_ours_ends_one_request_alone(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("secret detail")

    async def scene() -> None:
        bench = Bench(reply(HELLO))
        client = Client(body(stream=stream))
        with monkeypatch.context() as patched:
            patched.setattr("llmrs_cli.server.completion_answers.CompletionReply.take", broken)
            await bench.ask(client)
        assert client.status == 500
        assert "secret" not in client.text
        assert bench.service.idle.is_set()
        again = Client(body(stream=stream))
        await bench.ask(again)
        assert again.status == 200

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("phase", "code"),
    [(Phase.LOADING, "loading"), (Phase.DRAINING, "shutting_down"), (Phase.FAILED, "engine_fault")],
)
def test_outside_of_its_time_a_server_says_why(phase: Phase, code: str) -> None:
    async def scene() -> Client:
        bench = Bench(reply(HELLO))
        bench.service.phase = phase
        client = Client(body())
        await bench.ask(client)
        return client

    client = asyncio.run(scene())
    assert (client.status, json.loads(client.text)["error"]["code"]) == (503, code)


def test_a_broken_engine_takes_no_more() -> None:
    async def scene() -> Client:
        bench = Bench(reply(HELLO))
        bench.engine.fault = EngineFault("gone")
        client = Client(body())
        await bench.ask(client)
        return client

    assert asyncio.run(scene()).status == 503


def test_places_are_given_back_whatever_happens() -> None:
    async def scene() -> None:
        bench = Bench(reply(HELLO), queue=0)
        for fields in ({"n": 5}, {"prompt": "a" * 999}, {}, {"n": 4}):
            client = Client({**body(), **fields})
            await bench.ask(client)
            expected = 429 if fields == {"n": 5} else 400 if "prompt" in fields else 200
            assert client.status == expected
            assert bench.service.idle.is_set()

    asyncio.run(scene())


def test_prefixes_are_shared_within_a_key_and_a_salt_only() -> None:
    async def scene() -> list[str]:
        bench = Bench(reply(HELLO), keys=(b"key-one-1", b"key-two-2"))
        for key, salt in (("key-one-1", None), ("key-one-1", None), ("key-two-2", None), ("key-one-1", "s")):
            client = Client(body(cache_salt=salt))
            client.scope["headers"].append((b"authorization", f"Bearer {key}".encode()))
            await bench.ask(client)
        return [request.salt for request in bench.engine.requests]

    first, again, other, salted = asyncio.run(scene())
    assert first == again
    assert len({first, other, salted}) == 3
    assert "key" not in first
