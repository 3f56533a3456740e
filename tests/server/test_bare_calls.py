"""Calls of tools as Llama 3 writes them, a bare JSON object, over the wire: whole, streamed, asked for and required."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.helpers.byte_tokenizer import CHAT_TEMPLATE, IM_END, byte_id
from tests.helpers.ladder import TOP, Ladder, step_ids, write_ladder
from tests.helpers.served import Served, served
from tests.server.test_chat import TOOLS, ask, both, chat

CALL = ('{"name": ', '"f", "param', 'eters": {"a"', ': "{}\\"', '"}}', "<|im_end|>")
OTHER = ('{"name": ', '"z"}', "<|im_end|>")
"""After q: an object that calls no tool there is."""
TEMPLATE = (
    '{%- if tools %}{{- tools | tojson + \'{"name": ..., "parameters": ...}\' }}{%- endif %}' + CHAT_TEMPLATE
)
ARGUMENTS = {"a": '{}"'}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("llama")
    pieces = (*CALL, '{"name":', *OTHER[1:])
    begun, odd, end = (step_ids(pieces)[pieces.index(piece)] for piece in ('{"name":', '"z"}', "<|im_end|>"))
    table = {byte_id(ord("q")): {begun: TOP}, begun: {odd: TOP}, odd: {end: TOP}}
    ladder = Ladder(reply=pieces, table=table, vocab=384, chat_template=TEMPLATE)
    assert end == IM_END
    with served(write_ladder(folder / "model", ladder), folder) as server:
        yield server


def test_a_call_is_a_call_whole_and_streamed(llama: Served) -> None:
    answer = both(llama, chat(tools=TOOLS))
    assert (answer["content"], answer["finish"]) == ("", "tool_calls")
    (call,) = answer["calls"]
    assert (call["name"], json.loads(call["arguments"])) == ("f", ARGUMENTS)


def test_the_official_client_assembles_it(llama: Served) -> None:
    with openai.OpenAI(base_url=f"{llama.url}/v1", api_key="none", max_retries=0) as client:
        tools: Any = TOOLS
        stream = client.chat.completions.stream(
            model="model", messages=[{"role": "user", "content": "hi"}], tools=tools, temperature=0
        )
        with stream as events:
            message = events.get_final_completion().choices[0].message
    assert not message.content
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("f", ARGUMENTS)


def test_without_tools_and_of_no_tool_there_is_it_is_text(llama: Served) -> None:
    plain = both(llama, chat())
    assert (plain["content"], plain["calls"], plain["finish"]) == ("".join(CALL[:-1]), [], "stop")
    other = both(llama, chat("q", tools=TOOLS))
    assert (other["content"], other["calls"], other["finish"]) == ('{"name":"z"}', [], "stop")


def test_a_required_call_is_held_to_its_schema(llama: Served) -> None:
    schema = {
        "type": "object",
        "properties": {"b": {"enum": ["x"]}},
        "required": ["b"],
        "additionalProperties": False,
    }
    tools = [{"type": "function", "function": {"name": "g", "parameters": schema}}]
    answer = both(llama, chat(tools=tools, tool_choice="required", max_tokens=300))
    (call,) = answer["calls"]
    assert (call["name"], json.loads(call["arguments"])) == ("g", {"b": "x"})
    assert (
        ask(llama, **chat(tools=tools, tool_choice={"type": "function", "function": {"name": "h"}})).status
        == 400
    )
