"""The routes that generate nothing, and what they say while there is nothing to say."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import openai
import pytest

from llmrs_cli import __version__
from llmrs_cli.errors import EngineFault
from llmrs_cli.server.app import build_app
from llmrs_cli.server.security import App
from llmrs_cli.server.service import Phase, Service
from llmrs_cli.server.settings import ServerSettings
from tests.helpers.asgi import LOCAL, ask
from tests.helpers.bench import Bench, Client
from tests.helpers.byte_tokenizer import byte_ids
from tests.helpers.fake_engine import reply
from tests.helpers.served import Reply

HELLO = reply(tuple(byte_ids("hello")))


def get(bench: Bench, path: str) -> Reply:
    return ask(bench.app, "GET", path)


def post(body: Any, path: str) -> Client:
    async def scene() -> Client:
        bench, client = Bench(HELLO), Client(body, path)
        await bench.ask(client)
        bench.service.close()
        return client

    return asyncio.run(scene())


def test_the_model_is_listed_with_what_it_holds() -> None:
    (entry,) = get(Bench(HELLO), "/v1/models").json["data"]
    assert (entry["id"], entry["object"], entry["owned_by"]) == ("m", "model", "llmrs")
    assert (entry["max_model_len"], entry["vocab_size"]) == (64, 1024)


def test_the_version_is_ours() -> None:
    assert get(Bench(HELLO), "/version").json == {"version": __version__}


@pytest.mark.parametrize(
    ("phase", "live", "ready"),
    [
        (Phase.LOADING, 200, 503),
        (Phase.READY, 200, 200),
        (Phase.DRAINING, 200, 503),
        (Phase.FAILED, 503, 503),
    ],
)
def test_life_and_readiness_are_different_questions(phase: Phase, live: int, ready: int) -> None:
    bench = Bench(HELLO)
    bench.service.phase = phase
    assert get(bench, "/health/live").status == live
    assert get(bench, "/health/ready").status == ready


def test_a_broken_engine_is_not_ready() -> None:
    bench = Bench(HELLO)
    bench.engine.fault = EngineFault("gone")
    assert get(bench, "/health/ready").error["code"] == "engine_fault"


def loading() -> App:
    """A server that does not know its model yet."""
    return build_app(Service(ServerSettings()), io.StringIO())


@pytest.mark.parametrize("path", ["/", "/version", "/health/live", "/metrics", "/openapi.json"])
def test_what_needs_no_model_is_answered_without_one(path: str) -> None:
    assert ask(loading(), "GET", path).status == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "hi"}]}'),
        ("/v1/chat/completions/render", b'{"messages": [{"role": "user", "content": "hi"}]}'),
        ("/v1/completions", b'{"prompt": "hi"}'),
        ("/v1/responses", b'{"input": "hi"}'),
        ("/tokenize", b'{"prompt": "hi"}'),
        ("/detokenize", b'{"tokens": [1]}'),
    ],
)
def test_what_needs_one_is_asked_to_wait(path: str, body: bytes) -> None:
    headers = [*LOCAL, ("Content-Type", "application/json")]
    reply = ask(loading(), "POST", path, body, headers)
    assert (reply.status, reply.error["code"], reply.headers["retry-after"]) == (503, "loading", "2")


def test_text_becomes_ids_and_ids_text() -> None:
    told = post({"prompt": "né"}, "/tokenize").json
    assert told == {"tokens": byte_ids("né"), "count": 3, "max_model_len": 64}
    assert post({"tokens": byte_ids("né")}, "/detokenize").json == {"prompt": "né"}


def test_special_tokens_are_read_only_where_they_are_meant() -> None:
    plain = post({"prompt": "<|im_end|>"}, "/tokenize").json["tokens"]
    meant = post({"prompt": "<|im_end|>", "parse_special": True}, "/tokenize").json["tokens"]
    assert (len(plain), len(meant)) == (len("<|im_end|>"), 1)
    assert post({"tokens": meant}, "/detokenize").json["prompt"] == "<|im_end|>"


@pytest.mark.parametrize("tokens", [[-1], [1024], [2**40], ["1"], [True], [1.5], "1", None])
def test_what_is_no_id_has_no_text(tokens: Any) -> None:
    client = post({"tokens": tokens}, "/detokenize")
    assert client.status == 400
    assert client.json["error"]["param"].startswith("tokens")


def test_embeddings_are_not_made_here() -> None:
    error = post({"input": "a"}, "/v1/embeddings").json["error"]
    assert error["code"] == "unsupported"
    assert "embeddings" in error["message"]


def test_the_official_client_finds_a_model_by_its_name(client: openai.OpenAI) -> None:
    listed = client.models.list().data
    assert [client.models.retrieve(entry.id) for entry in listed] == listed
    for unknown in ("gpt-4", "org/script"):
        with pytest.raises(openai.NotFoundError) as error:
            client.models.retrieve(unknown)
        assert error.value.code == "model_not_found"
