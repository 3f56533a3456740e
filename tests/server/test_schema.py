"""The tables of fields: complete against OpenAI's own types, strict, and the same as what OpenAPI says."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from llmrs_cli.errors import RequestError
from llmrs_cli.server import kinds, schema
from llmrs_cli.server.fields import Field, Standing, Table, body_schema, read_fields
from llmrs_cli.server.schema import CHAT, COMPLETION

MESSAGES = [{"role": "user", "content": "hi"}]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def test_every_field_of_openai_s_chat_request_has_a_standing() -> None:
    theirs = set(chat_create_params.CompletionCreateParamsBase.__annotations__) | {"stream"}
    assert theirs - set(CHAT) == set()


def test_every_field_of_openai_s_completion_request_has_a_standing() -> None:
    theirs = set(completion_create_params.CompletionCreateParamsBase.__annotations__) | {"stream"}
    assert theirs - set(COMPLETION) == set()


@pytest.mark.parametrize("name", [name for name, field in CHAT.items() if field.standing is Standing.REFUSED])
def test_what_is_not_honoured_is_refused_by_name(name: str) -> None:
    with pytest.raises(RequestError, match=name) as error:
        read_fields(CHAT, {"messages": MESSAGES, name: {"a": 1}})
    assert (error.value.code, error.value.param) == ("unsupported", name)
    assert read_fields(CHAT, {"messages": MESSAGES, name: None}) == {"messages": (MESSAGES[0],)}


def test_inert_fields_are_checked_and_leave_no_trace() -> None:
    assert read_fields(CHAT, {"messages": MESSAGES, "user": "me", "store": False}).keys() == {"messages"}
    with pytest.raises(RequestError, match="user"):
        read_fields(CHAT, {"messages": MESSAGES, "user": 5})


def test_a_field_that_resembles_another_is_not_passed_over() -> None:
    for name, meant in (("maxtokens", "max_tokens"), ("num_predict", "max_tokens"), ("stops", "stop")):
        with pytest.raises(RequestError) as error:
            read_fields(CHAT, {"messages": MESSAGES, name: 1})
        assert f"Did you mean {meant}?" in str(error.value)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(RequestError) as error:
        read_fields(CHAT, {})
    assert error.value.param == "messages"


@given(st.sampled_from(sorted(CHAT)), anything)
def test_any_value_is_read_or_refused_by_name(name: str, value: Any) -> None:
    try:
        read_fields(CHAT, {"messages": MESSAGES, name: value})
    except RequestError as error:
        assert error.param is not None
        assert error.param.startswith(name)


@given(anything)
def test_any_body_is_read_or_refused(body: Any) -> None:
    for table in (CHAT, COMPLETION, schema.TOKENIZE, schema.DETOKENIZE, schema.RENDER):
        try:
            read_fields(table, body)
        except RequestError as error:
            assert error.message


@pytest.mark.parametrize("value", [True, "1", None, [], math.nan, math.inf, -0.1, 2.1])
def test_a_number_is_a_finite_number_in_range(value: Any) -> None:
    with pytest.raises(RequestError, match="x must be a number from 0 to 2"):
        kinds.number(0, 2).read("x", value)


NUMBERS = [
    *(-1, 0, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 1e308, math.nan, math.inf, -math.inf),
    *(True, False, "1", "", [], {}, [1]),
]
"""What clients send where a number belongs."""


def numeric(table: Table) -> list[str]:
    return [name for name, field in table.items() if field.kind.schema.get("type") in ("integer", "number")]


@pytest.mark.parametrize(
    ("table", "required"), [(CHAT, {"messages": MESSAGES}), (COMPLETION, {"prompt": "a"})]
)
def test_every_numeric_field_takes_numbers_of_its_range_alone(table: Table, required: dict[str, Any]) -> None:
    assert len(numeric(table)) > 10
    for name in numeric(table):
        schema = table[name].kind.schema
        low = schema.get("minimum", schema.get("exclusiveMinimum"))
        for value in [*NUMBERS, low, schema["maximum"], schema["maximum"] + 1, schema["maximum"] * 2]:
            try:
                read = read_fields(table, {**required, name: value})[name]
            except RequestError as error:
                assert error.param == name
                assert "number" in error.message or "integer" in error.message
            else:
                assert not isinstance(value, bool)
                assert low <= read <= schema["maximum"]


def test_a_whole_float_is_an_integer() -> None:
    assert kinds.integer(0, 5).read("x", 3.0) == 3
    for value in (True, 1.5, "3", 6, -1, math.inf, math.nan):
        with pytest.raises(RequestError):
            kinds.integer(0, 5).read("x", value)


def test_one_and_true_are_different_constants() -> None:
    with pytest.raises(RequestError):
        kinds.one_of(False).read("x", 0)


def test_an_object_of_known_fields_names_what_is_wrong_in_it() -> None:
    kind = kinds.record({"a": kinds.flag(), "b": kinds.text()}, ("a",))
    assert kind.read("x", {"a": True, "b": None}) == {"a": True}
    for value, param in (({"a": 1}, "x.a"), ({}, "x.a"), ({"a": True, "c": 1}, "x.c"), ([], "x")):
        with pytest.raises(RequestError) as error:
            kind.read("x", value)
        assert error.value.param == param


def test_a_list_says_how_long_it_may_be() -> None:
    for longest, rule in ((0, "x must be an empty list"), (1, "x must be a list of 0 to 1 items")):
        kind = kinds.array(kinds.text(), longest)
        assert kind.read("x", ["a"] * longest) == ("a",) * longest
        with pytest.raises(RequestError, match=rule):
            kind.read("x", ["a"] * (longest + 1))


def test_an_alternative_that_is_wrong_inside_is_named_there() -> None:
    kind = kinds.either("a text or a list of texts", kinds.text(), kinds.array(kinds.text(), 3))
    with pytest.raises(RequestError) as error:
        kind.read("x", ["a", 5])
    assert error.value.param == "x[1]"


def test_a_schema_says_what_a_table_takes() -> None:
    table = {"a": Field(kinds.flag(), required=True), "b": Field(kinds.text(), Standing.REFUSED)}
    assert body_schema(table) == {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"type": "null", "description": "Not supported."}},
        "required": ["a"],
        "additionalProperties": False,
    }
