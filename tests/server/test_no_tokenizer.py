"""A model without a tokenizer is served ids for ids, and says so wherever text would be needed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llmrs_cli.engine.types import FinishReason, Request, TokenEvent, TokenLogprob
from tests.helpers.bench import Bench, Client
from tests.helpers.fake_engine import Script, reply

ANSWER = (7, 8, 9)


def scored(request: Request) -> list[TokenEvent]:
    """A token with its score, after a prompt of which each token but the first has one."""
    score = TokenLogprob(7, -0.5, ((7, -0.5), (3, -1.5)))
    return [TokenEvent(request.id, (7,), (score,), (None, score), finish=FinishReason.LENGTH)]


def post(path: str, body: dict[str, Any], script: Script | None = None) -> Client:
    async def scene() -> Client:
        bench, client = Bench(script or reply(ANSWER), tokenizer=False), Client(body, path)
        await bench.ask(client)
        bench.service.close()
        return client

    return asyncio.run(scene())


def test_ids_are_answered_with_ids() -> None:
    client = post("/v1/completions", {"prompt": [1, 2], "max_tokens": 3, "return_token_ids": True})
    assert client.status == 200, client.text
    (choice,) = client.json["choices"]
    assert (choice["text"], choice["token_ids"], choice["prompt_token_ids"]) == ("", [7, 8, 9], [1, 2])
    assert client.json["usage"]["completion_tokens"] == 3


def test_a_stream_has_the_ids_as_they_come() -> None:
    body = {"prompt": [1, 2], "max_tokens": 3, "return_token_ids": True, "stream": True}
    choices = [event["choices"][0] for event in post("/v1/completions", body).events]
    assert [token for choice in choices for token in choice["token_ids"]] == [7, 8, 9]
    assert choices[-1]["finish_reason"] == "length"


def test_an_echo_and_its_scores_have_no_text() -> None:
    body = {"prompt": [1, 7], "max_tokens": 1, "echo": True, "logprobs": 2}
    (choice,) = post("/v1/completions", body, scored).json["choices"]
    assert choice["text"] == ""
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/completions", {"prompt": [1], "response_format": {"type": "json_object"}}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/chat/completions/render", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/responses", {"input": "hi"}),
        ("/tokenize", {"prompt": "hi"}),
        ("/tokenize", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/detokenize", {"tokens": [1]}),
    ],
)
def test_where_text_is_needed_the_model_cannot(path: str, body: dict[str, Any]) -> None:
    client = post(path, body)
    assert client.status == 400, client.text
    assert client.json["error"]["code"] == "model_cannot"
    assert "tokenizer" in client.json["error"]["message"]
