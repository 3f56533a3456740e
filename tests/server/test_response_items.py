"""Bodies of /v1/responses become what the same conversation is as a chat; whatever else comes is refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.errors import RequestError
from llmrs_cli.server.response_items import response_request
from llmrs_cli.server.translate import ChatRequest, chat_request

TOOL = {"name": "f", "description": "does", "parameters": {"type": "object"}}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
texts = st.text(max_size=5)


def request(given: Any = "hi", **fields: Any) -> ChatRequest:
    return response_request({"input": given, **fields})[0]


def messages(*items: Any) -> tuple[dict[str, Any], ...]:
    return request(list(items)).messages


def refusal(given: Any, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        request(given, **fields)
    return caught.value


def called(name: str, arguments: str, call: str) -> dict[str, Any]:
    return {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_text_is_what_the_user_says_and_instructions_stand_before_it() -> None:
    assert request("hi").messages == chat_request({"messages": [{"role": "user", "content": "hi"}]}).messages
    first, second = request("hi", instructions="Be brief.").messages
    assert (first["role"], first["content"]) == ("system", "Be brief.")
    assert (second["role"], second["content"]) == ("user", "hi")


def test_every_field_that_a_chat_has_too_is_the_same_there() -> None:
    shared = {"model": "m", "temperature": 0.5, "top_p": 0.25, "stream": True, "parallel_tool_calls": False}
    function = {"type": "function", "name": "f"}
    ours = request(
        "hi", **shared, max_output_tokens=7, tools=[{"type": "function", **TOOL}], tool_choice=function
    )
    theirs = chat_request(
        {
            **shared,
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 7,
            "tools": [{"type": "function", "function": TOOL}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
        }
    )
    assert ours == theirs


@pytest.mark.parametrize("choice", ["none", "auto", "required"])
def test_a_choice_in_a_word_is_the_same_word(choice: str) -> None:
    assert request("hi", tools=[{"type": "function", **TOOL}], tool_choice=choice).tool_choice == choice


def test_a_schema_stands_one_level_deeper_in_a_chat() -> None:
    form = {"name": "x", "schema": {"enum": [True]}, "strict": True}
    theirs = chat_request(
        {
            "messages": [{"role": "user", "content": "hi"}],
            "response_format": {"type": "json_schema", "json_schema": form},
        }
    )
    ours = request("hi", text={"format": {"type": "json_schema", **form}})
    assert replace(ours, form_field="response_format") == theirs
    assert ours.form_field == "text.format"
    assert not request("hi", text={"format": {"type": "text"}}).options.grammar


def test_calls_of_one_turn_belong_to_one_message() -> None:
    said = {"role": "assistant", "content": "Two of them."}
    *_, one = messages({"role": "user", "content": "hi"}, said, CALL, {**CALL, "call_id": "c2"})
    assert one["content"] == "Two of them."
    assert one["tool_calls"] == [called("f", "{}", "c1"), called("f", "{}", "c2")]


def test_a_call_after_an_answer_to_a_call_is_a_turn_of_its_own() -> None:
    output = {"type": "function_call_output", "call_id": "c1", "output": "done"}
    found = messages({"role": "user", "content": "hi"}, CALL, output, {**CALL, "call_id": "c2"})
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "assistant"]
    assert [len(message.get("tool_calls", ())) for message in found] == [0, 1, 0, 1]
    assert (found[2]["tool_call_id"], found[2]["content"]) == ("c1", "done")


def test_earlier_thoughts_are_no_part_of_a_prompt() -> None:
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    (only,) = messages({"role": "user", "content": "hi"}, thought)
    assert only["content"] == "hi"


@given(st.lists(texts, min_size=1, max_size=4))
def test_parts_of_a_text_are_joined(parts: list[str]) -> None:
    kinds = ("input_text", "output_text", "text")
    content = [{"type": kinds[i % 3], "text": text} for i, text in enumerate(parts)]
    (only,) = messages({"role": "user", "content": content})
    assert only["content"] == "".join(parts)


@pytest.mark.parametrize(
    ("item", "param", "said"),
    [
        ({"role": "user", "content": 5}, "input[1].content", "must be a text or a list of parts"),
        ({"role": "user"}, "input[1].content", "must be a text or a list of parts"),
        ({"role": "user", "content": ["hi"]}, "input[1].content[0]", "Content of type None"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[1].content[0].text", "must be a text"),
        ({"role": "user", "content": [{"type": "input_file"}]}, "input[1].content[0]", "'input_file'"),
        ({"content": "hi"}, "input[1].role", "must be a text"),
        ({**CALL, "name": None}, "input[1].name", "must be a text"),
        ({**CALL, "arguments": {}}, "input[1].arguments", "must be a text"),
        ({"type": "function_call", "name": "f", "arguments": "{}"}, "input[1].call_id", "must be a text"),
        ({"type": "function_call_output", "output": "done"}, "input[1].call_id", "must be a text"),
        ({"type": "web_search_call"}, "input[1].type", "'web_search_call'"),
        ({"type": "function_call_output", "call_id": "c", "output": {}}, "input[1].output", "must be a text"),
    ],
)
def test_what_an_item_cannot_be_is_named_with_its_place(item: Any, param: str, said: str) -> None:
    error = refusal([{"role": "user", "content": "hi"}, item])
    assert error.param == param
    assert said in error.message


@pytest.mark.parametrize(
    ("form", "more", "param", "said"),
    [
        ({"type": "xml"}, {}, "text.format.type", "text.format.type must be one of"),
        ({"type": "json_schema", "name": "x"}, {}, "text.format.schema", "text.format.schema must be given"),
        (
            {"type": "json_object"},
            {"tools": [{"type": "function", "name": "f"}], "tool_choice": "required"},
            "text.format",
            "there can be no text.format",
        ),
    ],
)
def test_a_form_that_is_wrong_is_named_as_it_is_asked_for_here(
    form: Any, more: dict[str, Any], param: str, said: str
) -> None:
    error = refusal("hi", text={"format": form}, **more)
    assert error.param == param
    assert said in error.message


def test_a_response_repeats_what_was_asked_with_the_values_that_hold() -> None:
    _, bare = response_request({"input": "hi"})
    assert bare["instructions"] is bare["max_output_tokens"] is bare["temperature"] is None
    assert (bare["tool_choice"], bare["tools"], bare["text"]) == ("auto", [], {"format": {"type": "text"}})
    _, full = response_request(
        {
            "input": "hi",
            "instructions": "Be brief.",
            "metadata": {"k": "v"},
            "tools": [{"type": "function", "name": "f"}],
        }
    )
    assert (full["instructions"], full["metadata"]) == ("Be brief.", {"k": "v"})
    assert full["tools"] == [
        {"type": "function", "name": "f", "description": None, "parameters": None, "strict": None}
    ]


json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "user", "text", "message", "f"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)
items = st.dictionaries(
    st.sampled_from(["type", "role", "content", "call_id", "name", "arguments", "output", "text"]),
    json
    | st.sampled_from(["function_call", "function_call_output", "reasoning", "message", "assistant"])
    | st.lists(
        st.fixed_dictionaries({"type": st.sampled_from(["input_text", "x"]), "text": json}), max_size=2
    ),
    max_size=4,
)


@given(st.lists(items, max_size=4), st.dictionaries(st.sampled_from(["tools", "tool_choice", "text"]), json))
def test_any_items_are_a_request_or_are_refused(given_items: list[Any], fields: dict[str, Any]) -> None:
    try:
        found = request(given_items, **fields)
    except RequestError as error:
        assert error.param is not None and error.message.isprintable()
    else:
        assert all(isinstance(message["role"], str) for message in found.messages)
