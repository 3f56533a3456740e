"""What `response_format` and `structured_outputs` may be: their grammar, and where one that is none of ours goes wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.errors import RequestError
from llmrs_cli.text import grammar
from llmrs_cli.text.forms import AnswerForm, answer_form, schema_form, structured_form

SCHEMA = {"enum": ["good", "bad"]}


def named(**changes: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, **changes}}


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ({"type": "text"}, AnswerForm()),
        ({"type": "json_object"}, AnswerForm(grammar.json_object(), is_json=True)),
        (named(), AnswerForm(grammar.json_schema(SCHEMA), is_json=True)),
        (named(strict=False, description="d"), AnswerForm(grammar.json_schema(SCHEMA), is_json=True)),
        (named(strict=None), AnswerForm(grammar.json_schema(SCHEMA), is_json=True)),
        ({"type": "regex", "regex": "a|b"}, AnswerForm(grammar.regex("a|b"))),
        ({"type": "grammar", "grammar": 'start: "a"'}, AnswerForm(grammar.lark('start: "a"'))),
    ],
)
def test_a_form_is_its_grammar(value: dict[str, Any], form: AnswerForm) -> None:
    assert answer_form(value) == form


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (5, ""),
        ({}, ".type"),
        ({"type": "xml"}, ".type"),
        ({"type": ["text"]}, ".type"),
        ({"type": "text", "regex": "a"}, ".regex"),
        ({"type": "regex"}, ".regex"),
        ({"type": "regex", "regex": None}, ".regex"),
        ({"type": "regex", "regex": 5}, ".regex"),
        ({"type": "regex", "regex": ""}, ""),
        ({"type": "json_schema"}, ".json_schema"),
        ({"type": "json_schema", "json_schema": []}, ".json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, ".json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, ".json_schema.name"),
        (named(name=""), ".json_schema.name"),
        (named(name="x" * 65), ".json_schema.name"),
        (named(strict="yes"), ".json_schema.strict"),
        (named(extra=1), ".json_schema.extra"),
        (named(schema={"x": "y" * 70_000}), ""),
    ],
)
def test_what_is_none_says_where(value: Any, where: str) -> None:
    with pytest.raises(RequestError) as error:
        answer_form(value)
    assert error.value.param == f"response_format{where}"
    assert len(error.value.message) < 200


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["type", "json_schema", "regex", "choice", "json"]), inner)
        ),
        max_leaves=6,
    )
)
def test_any_value_is_a_form_or_a_refusal(value: Any) -> None:
    for read, field in ((answer_form, "response_format"), (structured_form, "structured_outputs")):
        try:
            assert isinstance(read(value), AnswerForm)
        except RequestError as error:
            assert error.param is not None and error.param.startswith(field)


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ({"json": SCHEMA}, AnswerForm(grammar.json_schema(SCHEMA), is_json=True)),
        ({"json": '{"enum": ["good", "bad"]}'}, AnswerForm(grammar.json_schema(SCHEMA), is_json=True)),
        ({"json_object": True, "regex": None}, AnswerForm(grammar.json_object(), is_json=True)),
        ({"regex": "a|b"}, AnswerForm(grammar.regex("a|b"))),
        ({"choice": ["a", "b c"]}, AnswerForm(grammar.one_of(["a", "b c"]))),
        ({"grammar": 'start: "a"'}, AnswerForm(grammar.lark('start: "a"'))),
    ],
)
def test_a_structure_is_its_grammar(value: dict[str, Any], form: AnswerForm) -> None:
    assert structured_form(value) == replace(form, field="structured_outputs")


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ("regex", ""),
        ({}, ""),
        ({"json": None}, ""),
        ({"regex": "a", "choice": ["a"]}, ""),
        ({"regex": 5}, ".regex"),
        ({"grammar": []}, ".grammar"),
        ({"json": "["}, ".json"),
        ({"json": "[1]"}, ".json"),
        ({"json": 5}, ".json"),
        ({"json_object": 1}, ".json_object"),
        ({"choice": "a"}, ".choice"),
        ({"choice": []}, ".choice"),
        ({"choice": ["a"] * 1001}, ".choice"),
        ({"choice": ["a", ""]}, ".choice[1]"),
        ({"choice": ["a", "b" * 257]}, ".choice[1]"),
        ({"structural_tag": "x"}, ".structural_tag"),
        ({"regex": ""}, ""),
    ],
)
def test_what_is_no_structure_says_where(value: Any, where: str) -> None:
    with pytest.raises(RequestError) as error:
        structured_form(value)
    assert error.value.param == f"structured_outputs{where}"


def test_a_schema_of_a_flag_is_named_by_the_flag() -> None:
    with pytest.raises(RequestError) as error:
        schema_form({"x": "y" * 70_000}, "schema")
    assert error.value.param == "schema"
