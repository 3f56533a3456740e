"""Answers that must have a form, over the wire: kept to by a model that would say something else."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.helpers.byte_tokenizer import byte_id
from tests.helpers.served import Reply, Served
from tests.server.test_chat import TOOLS, both, chat

A = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


def form(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


def ask(server: Served, **fields: Any) -> Reply:
    return server.post("/v1/chat/completions", chat(**fields))


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_conforms_to_its_schema(server: Served, stream: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["é", "😊"]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    answer = both(server, chat(response_format=form(schema)))
    assert json.loads(answer["content"])["a"] in ("é", "😊")
    assert answer["finish"] == "stop"


def test_the_official_client_parses_a_schema(client: openai.OpenAI) -> None:
    wanted: Any = form({"enum": [True]})
    answer = client.chat.completions.create(
        model="script", messages=[{"role": "user", "content": "hi"}], response_format=wanted, temperature=0
    )
    assert answer.choices[0].message.content == "true"


def test_a_pattern_is_kept_to(server: Served) -> None:
    answer = both(server, chat(response_format={"type": "regex", "regex": "[ab]{3}c"}))
    assert len(answer["content"]) == 4
    assert answer["content"][3] == "c"


def test_a_grammar_is_kept_to(server: Served) -> None:
    answer = both(server, chat(response_format={"type": "grammar", "grammar": 'start: "yes" | "no"'}))
    assert answer["content"] in ("yes", "no")


@pytest.mark.parametrize(
    ("structure", "expected"),
    [
        ({"regex": "[ab]{3}c"}, "[ab]{3}c"),
        ({"choice": ["maybe", 'a "quoted" one', "漢字\n😊"]}, 'maybe|a "quoted" one|漢字\n😊'),
        ({"grammar": 'start: "yes" | "no"'}, "yes|no"),
        ({"json": {"enum": [7]}}, "7"),
        ({"json": '{"const": "x"}'}, '"x"'),
        ({"json_object": True}, r"\{[\s\S]*"),
    ],
)
def test_forms_may_be_asked_for_as_vllm_s_clients_do(
    server: Served, structure: dict[str, Any], expected: str
) -> None:
    answer = both(server, chat(structured_outputs=structure))
    assert re.fullmatch(expected, answer["content"])


@pytest.mark.parametrize(
    "structure",
    [
        {},
        {"regex": "a", "choice": ["a"]},
        {"choice": []},
        {"json": "["},
        {"json_object": False},
        {"structural_tag": "x"},
        {"regex": "("},
        {"choice": [""]},
    ],
)
def test_a_structure_that_is_none_is_refused(server: Served, structure: dict[str, Any]) -> None:
    reply = ask(server, structured_outputs=structure)
    assert reply.status == 400
    assert reply.error["param"].startswith("structured_outputs")


def test_two_forms_are_refused(server: Served) -> None:
    reply = ask(server, structured_outputs={"regex": "a"}, response_format={"type": "json_object"})
    assert (reply.status, reply.error["param"]) == (400, "structured_outputs")


def test_an_older_name_of_a_form_is_refused_with_the_newer_one(server: Served) -> None:
    for name in ("guided_json", "guided_regex", "guided_choice", "guided_grammar"):
        error = ask(server, **{name: {}}).error
        assert (error["code"], error["param"]) == ("unsupported", name)
        assert "structured_outputs" in error["message"]


def test_a_schema_that_would_never_be_compiled_is_refused_and_holds_nobody_up(server: Served) -> None:
    endless = form({"type": "integer", "multipleOf": 9_999_991})
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, server, response_format=endless)
        assert ask(server).status == 200
        reply = asked.result()
    assert (reply.status, reply.error["param"]) == (400, "response_format")


def test_a_form_that_has_been_tried_waits_for_none_that_never_ends(server: Served) -> None:
    known = {"type": "json_object"}
    assert ask(server, response_format=known, max_tokens=3).status == 200
    with ThreadPoolExecutor(3) as pool:
        endless = [form({"type": "integer", "multipleOf": 9_999_973 + 2 * i}) for i in range(3)]
        asked = [pool.submit(ask, server, response_format=one) for one in endless]
        assert ask(server, response_format=known, max_tokens=3).status == 200
        assert not all(one.done() for one in asked)
    assert [one.result().status for one in asked] == [400] * 3


def test_a_tool_whose_parameters_cannot_be_kept_to_is_refused(server: Served) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}
    reply = ask(server, tools=[tool], tool_choice="required")
    assert (reply.status, reply.error["param"]) == (400, "tools")


def test_completions_keep_to_a_form_too(server: Served) -> None:
    body = {"prompt": "S", "response_format": {"type": "regex", "regex": "x{5}"}, "temperature": 0}
    assert server.post("/v1/completions", body).json["choices"][0]["text"] == "xxxxx"


def test_any_json_object_may_be_asked_for(server: Served) -> None:
    reply = ask(server, response_format={"type": "json_object"}, max_tokens=30).json["choices"][0]
    assert reply["message"]["content"].startswith("{")


def test_an_answer_that_is_cut_is_given_as_it_is(server: Served) -> None:
    reply = ask(server, response_format=form({"type": "string", "minLength": 50}), max_tokens=5).json[
        "choices"
    ][0]
    assert reply["finish_reason"] == "length"
    assert reply["message"]["content"].startswith('"')
    assert not reply["message"]["content"][1:].endswith('"')


@pytest.mark.parametrize(
    "response_format",
    [
        {"type": "xml"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "x"}},
        {},
        {"type": 5},
        {"type": "regex", "regex": "("},
        {"type": "grammar", "grammar": "nonsense"},
        {"type": "json_object", "schema": {}},
        form({"type": "array", "uniqueItems": True}),
        form({"not": {}}),
        form({"x-guidance": {"lenient": True}}),
        form({"type": "integer", "minimum": 7, "maximum": 6}),
    ],
)
def test_a_form_that_cannot_be_kept_to_is_refused(server: Served, response_format: Any) -> None:
    reply = ask(server, response_format=response_format)
    assert reply.status == 400
    assert reply.error["param"].startswith("response_format")


@pytest.mark.parametrize("fields", [{"ignore_eos": True}, {"min_tokens": 3}])
def test_what_would_run_past_the_end_of_a_form_is_refused(server: Served, fields: dict[str, Any]) -> None:
    reply = ask(server, response_format={"type": "regex", "regex": "a"}, **fields)
    assert (reply.status, reply.error["param"]) == (400, next(iter(fields)))


def test_an_object_of_many_fields_that_may_be_left_out_is_followed(server: Served) -> None:
    schema = {
        "type": "object",
        "properties": {f"p{i}": {"type": "integer"} for i in range(400)},
        "additionalProperties": False,
    }
    reply = ask(server, response_format=form(schema), max_tokens=200, logit_bias={"92": 9})
    assert reply.status == 200
    assert reply.json["choices"][0]["message"]["content"].startswith("{")


def test_a_call_can_be_required(server: Served) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": A}}]
    named = {"type": "function", "function": {"name": "f"}}
    for choice in ("required", named):
        reply = both(
            server,
            chat(
                tools=tools,
                tool_choice=choice,
                parallel_tool_calls=False,
                max_tokens=400,
                logit_bias={str(byte_id(ord("}"))): 9},  # else its integer might have digits for ever
            ),
        )
        assert reply["finish"] == "tool_calls"
        (call,) = reply["calls"]
        assert call["name"] == "f"
        assert json.loads(call["arguments"]).keys() == {"a"}


def test_a_required_call_has_no_other_form(server: Served) -> None:
    reply = ask(server, tools=TOOLS, tool_choice="required", response_format={"type": "json_object"})
    assert (reply.status, reply.error["param"]) == (400, "response_format")


def test_a_neighbour_under_a_grammar_changes_nothing(server: Served) -> None:
    body = chat("F", seed=3, temperature=1, max_tokens=20)
    alone = server.post("/v1/chat/completions", body).json["choices"][0]["message"]["content"]
    bound = chat(response_format=form({"type": "string", "minLength": 90}), stream=True, max_tokens=60)
    connection = server.connect()
    try:
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(bound).encode(), {"Content-Type": "application/json"}
        )
        assert server.post("/v1/chat/completions", body).json["choices"][0]["message"]["content"] == alone
        connection.getresponse().read()
    finally:
        connection.close()
