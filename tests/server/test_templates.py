"""Chat templates, the model's own code, behind the server: what they refuse and where they fail ends one request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llmrs_cli.engine.types import FinishReason
from tests.helpers.bench import Bench, Client
from tests.helpers.byte_tokenizer import IM_END, byte_ids
from tests.helpers.fake_engine import reply

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "hi"}]}
HELLO = reply((*byte_ids("hello"), IM_END), finish=FinishReason.STOP)
SWITCH = (
    "{{ messages[0].content }}:{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% elif enable_thinking is defined %}<think>\n{% endif %}"
)


def answer(template: str | None, body: Any, path: str = CHAT) -> Client:
    """The response of a server whose model has this template; afterwards it answers a plain prompt."""

    async def scene() -> Client:
        bench = Bench(HELLO, template=template)
        client, after = Client(body, path), Client({"prompt": "hi"})
        await bench.ask(client)
        await bench.ask(after)
        assert after.json["choices"][0]["text"] == "hello"
        bench.service.close()
        return client

    return asyncio.run(scene())


@pytest.mark.parametrize("path", [CHAT, f"{CHAT}/render", "/tokenize"])
def test_a_model_without_a_template_cannot_chat(path: str) -> None:
    client = answer(None, HI, path)
    assert (client.status, client.json["error"]["code"]) == (400, "model_cannot")
    assert "template" in client.json["error"]["message"]


def test_what_a_template_says_against_messages_is_passed_on() -> None:
    client = answer("{{ raise_exception('Roles must\x1b[31m alternate' ~ 'x' * 900) }}", HI)
    assert client.status == 400
    message = client.json["error"]["message"]
    assert "Roles must" in message
    assert "\x1b" not in message
    assert len(message) < 700


BOMBS = [
    "{{ 'a' * 1000000000 }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ 10 ** 10000000 }}",
    "{% set ns = namespace(s='ab') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ ''.__class__.__mro__ }}",
    "{% for i in range(10000000) %}x{% endfor %}",
]


@pytest.mark.parametrize("template", [*BOMBS, "{% if %}", "{{ nothing.at.all }}"])
def test_a_hostile_or_broken_template_ends_one_request(template: str) -> None:
    client = answer(template, HI)
    assert client.status == 400
    assert "Traceback" not in client.text


@pytest.mark.parametrize(
    ("thinking", "content", "reasoning"), [(False, "hello", None), (True, "", "hello"), (None, "hello", None)]
)
def test_a_thought_is_looked_for_where_the_template_leaves_room_for_it(
    thinking: bool | None, content: str, reasoning: str | None
) -> None:
    arguments = {} if thinking is None else {"chat_template_kwargs": {"enable_thinking": thinking}}
    choice = answer(SWITCH, {**HI, **arguments}).json["choices"][0]
    assert choice["message"]["content"] == content
    assert choice["message"].get("reasoning_content") == reasoning
    assert choice["finish_reason"] == "stop"


def test_thoughts_of_earlier_turns_reach_the_template() -> None:
    template = "{% for m in messages %}{{ m.role }}:{{ m.reasoning_content }}:{{ m.content }};{% endfor %}"
    turn = {"role": "assistant", "content": "b", "reasoning_content": "why"}
    client = answer(template, {"messages": [{"role": "user", "content": "a"}, turn]}, f"{CHAT}/render")
    assert client.json["prompt"] == "user::a;assistant:why:b;"
