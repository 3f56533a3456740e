"""/v1/chat/completions over the wire: what may not be asked for, and is refused by name, and where answers end."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.helpers.served import Served
from tests.server.test_chat import USER, ask, chat


@pytest.mark.parametrize(
    "messages",
    [
        [],
        None,
        "hi",
        [{}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x"}}]}],
        [{"role": "wizard", "content": "x"}],
        [{"role": "user", "content": 5}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "not json"}}]}],
    ],
)
def test_odd_messages_are_refused_by_name(server: Served, messages: Any) -> None:
    reply = server.post("/v1/chat/completions", {"messages": messages})
    assert reply.status == 400
    assert reply.error["param"].startswith("messages")


@pytest.mark.parametrize(
    "message",
    [{"role": "user", "content": ""}, {"role": "user", "content": []}, {"role": "system", "content": "x"}],
    ids=["empty", "no parts", "only a system"],
)
def test_an_empty_message_is_answered(server: Served, message: Any) -> None:
    assert ask(server, messages=[message], max_tokens=2).status == 200


def test_too_long_a_prompt_is_refused_with_both_numbers(server: Served) -> None:
    reply = ask(server, messages=[{"role": "user", "content": "a" * 600}])
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
    prompt = server.post("/tokenize", {"messages": [{"role": "user", "content": "a" * 600}]}).json["count"]
    assert f"{prompt} tokens; the context holds 512" in reply.error["message"]


def test_an_answer_beyond_the_context_ends_there(server: Served) -> None:
    messages = [{"role": "user", "content": "a" * 400}, {"role": "assistant", "content": "L"}]
    reply = ask(server, **chat("L", max_tokens=100_000, messages=messages)).json
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["total_tokens"] == 512


def test_choices_may_not_outgrow_the_contexts(server: Served) -> None:
    reply = ask(server, **chat("L", n=8, max_tokens=500))
    assert (reply.status, reply.error["param"]) == (400, "max_tokens")


@pytest.mark.parametrize("length", [511, 512, 513])
def test_a_prompt_that_leaves_room_for_a_token_is_the_longest(server: Served, length: int) -> None:
    reply = server.post("/v1/completions", {"prompt": [5] * length, "max_tokens": 9})
    if length == 511:
        assert reply.json["usage"]["completion_tokens"] == 1
        assert reply.json["choices"][0]["finish_reason"] == "length"
    else:
        assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
        assert f"{length} tokens" in reply.error["message"]


def test_max_completion_tokens_wins(server: Served) -> None:
    for fields in ({"max_completion_tokens": 3}, {"max_completion_tokens": 3, "max_tokens": 5}):
        reply = ask(server, **{**chat("L"), **fields}).json
        assert reply["usage"]["completion_tokens"] == 3
        assert reply["choices"][0]["finish_reason"] == "length"


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="gpt-4", messages=[{"role": "user", "content": "hi"}])
    assert error.value.code == "model_not_found"


BAD: dict[str, list[Any]] = {
    "temperature": ["0", True, -0.1, 2.1, []],
    "top_p": [1.5, "1", False],
    "max_tokens": [0, -1, 1.5, "3", 2**63, True],
    "n": [0, 9, 2**31],
    "top_logprobs": [1, 21, 10**6],
    "stop": ["", [""], ["", "x"], ["x"] * 17, "x" * 257, ["x"] * 10_000],
    "logit_bias": [
        *({"999999999": -100}, {"AI": -100}, {"-1": 5}, {"5": 101}, []),
        {str(id): 1 for id in range(100_000)},
    ],
    "stop_token_ids": [[384]],
    "seed": [1.5],
    "best_of": [2],
    "chat_template": ["{{ 1 }}"],
    "chat_template_kwargs": [{"messages": []}],
    "response_format": [{"type": "xml"}],
    "store": [True],
    "tool_choice": ["required"],
    "prompt_logprobs": [6, -1],
    "metadata": [{str(i): "" for i in range(17)}, {"a": 1}, {"a" * 65: ""}, {"a": "b" * 513}],
    "stream_options": [{"include_usage": True}],
    "messages": [
        [{**USER, "contnet": "hi"}],
        [{**USER, "name": "me"}],
        [{"role": "user", "content": [{"type": "text", "text": "hi", "txt": "a"}]}],
    ],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD.items() for value in values]
)
def test_a_value_out_of_range_is_refused_by_name(server: Served, name: str, value: Any) -> None:
    reply = ask(server, **{**chat(), name: value})
    assert reply.status == 400, reply.data
    assert reply.error["param"] is not None
    assert reply.error["param"].startswith(name)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_no_json_are_refused(server: Served, number: str) -> None:
    body = b'{"messages": [{"role": "user", "content": "hi"}], "temperature": ' + number.encode() + b"}"
    assert server.post("/v1/chat/completions", body).status == 400


def test_an_unknown_field_is_refused_with_the_nearest_name(server: Served) -> None:
    reply = ask(server, **chat(temprature=1))
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "unknown_field", "temprature")
    assert "temperature" in reply.error["message"]


def test_padding_against_eavesdroppers_is_refused_where_there_is_none(server: Served) -> None:
    for include, status in ((True, 400), (False, 200)):
        assert (
            ask(server, **chat(stream=True, stream_options={"include_obfuscation": include})).status == status
        )


def test_absent_and_null_are_the_same(server: Served) -> None:
    reply = ask(server, **chat(stop=None, tools=None, seed=None, stream=None, response_format=None))
    assert reply.json["choices"][0]["message"]["content"] == "Hello world"
