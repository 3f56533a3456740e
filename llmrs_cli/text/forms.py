"""The form that a request names for its answer, in OpenAI's `response_format` or vLLM's `structured_outputs`:
read here for every front end.

Strict, as requests are: a field that has no meaning here is refused by name, and so is a value of the wrong
kind. What a schema, pattern or grammar itself says is seen when it is tried (`TextEngine.check_grammar`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llmrs_cli.errors import RequestError, escaped
from llmrs_cli.text import grammar
from llmrs_cli.text.grammar import FIELD

MAX_NAME = 64
"""Characters of a schema's name, as with OpenAI."""
MAX_CHOICES, MAX_CHOICE = 1000, 256
"""Texts that an answer may be one of, and characters of each."""
STRUCTURED = "structured_outputs"


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What an answer is held to."""

    grammar: str = ""
    """Empty: nothing."""
    is_json: bool = False
    """A complete answer is one JSON value."""
    field: str = FIELD
    """Where it was asked for."""


def answer_form(value: Any) -> AnswerForm:
    """The form that a decoded `response_format` names. RequestError says where it is none of ours."""
    if not isinstance(value, dict):
        raise _refuse(FIELD, "an object")
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in _FORMS:
        raise _refuse(f"{FIELD}.type", f"one of {', '.join(_FORMS)}")
    fields, make = _FORMS[kind]
    return make(_read(FIELD, value, {"type": str, **fields}, required=fields))


def structured_form(value: Any) -> AnswerForm:
    """The form that a decoded `structured_outputs` names: one of json, json_object, regex, choice, grammar."""
    if not isinstance(value, dict):
        raise _refuse(STRUCTURED, "an object")
    given = _read(STRUCTURED, value, dict.fromkeys(_STRUCTURES, object), required=())
    if len(given) != 1:
        raise _refuse(STRUCTURED, f"an object with one of {', '.join(_STRUCTURES)}")
    ((name, entry),) = given.items()
    return _STRUCTURES[name](f"{STRUCTURED}.{name}", entry)


def schema_form(schema: Mapping[str, Any], param: str = FIELD) -> AnswerForm:
    """JSON that conforms to `schema`. RequestError if it is too large."""
    return AnswerForm(grammar.json_schema(schema, param), is_json=True, field=param)


def _named_schema(form: Mapping[str, Any]) -> AnswerForm:
    where = f"{FIELD}.json_schema"
    named = _read(where, form["json_schema"], _NAMED_SCHEMA, required=("name", "schema"))
    if not 0 < len(named["name"]) <= MAX_NAME:
        raise _refuse(f"{where}.name", f"a text of 1 to {MAX_NAME} characters")
    return schema_form(named["schema"])


def _any_schema(where: str, value: Any) -> AnswerForm:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, dict):
        raise _refuse(where, "a schema, as an object or as its text")
    return schema_form(value, STRUCTURED)


def _any_object(where: str, value: Any) -> AnswerForm:
    if value is not True:
        raise _refuse(where, "true")
    return AnswerForm(grammar.json_object(), is_json=True, field=STRUCTURED)


def _choice(where: str, value: Any) -> AnswerForm:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_CHOICES:
        raise _refuse(where, f"a list of 1 to {MAX_CHOICES} texts")
    for place, text in enumerate(value):
        if not isinstance(text, str) or not 0 < len(text) <= MAX_CHOICE:
            raise _refuse(f"{where}[{place}]", f"a text of 1 to {MAX_CHOICE} characters")
    return AnswerForm(grammar.one_of(value, STRUCTURED), field=STRUCTURED)


def _source(make: Callable[[str, str], str]) -> Callable[[str, Any], AnswerForm]:
    def read(where: str, value: Any) -> AnswerForm:
        if not isinstance(value, str):
            raise _refuse(where, "a text")
        return AnswerForm(make(value, STRUCTURED), field=STRUCTURED)

    return read


_STRUCTURES: Mapping[str, Callable[[str, Any], AnswerForm]] = {
    "json": _any_schema,
    "json_object": _any_object,
    "regex": _source(grammar.regex),
    "choice": _choice,
    "grammar": _source(grammar.lark),
}
"""Name → what its value means; a grammar is written in Lark's notation."""
_KINDS = {str: "a text", bool: "true or false", dict: "an object"}
_NAMED_SCHEMA = {"name": str, "description": str, "schema": dict, "strict": bool}
"""A schema is kept to whether `strict` or not."""
_FORMS: Mapping[str, tuple[Mapping[str, type], Callable[[Mapping[str, Any]], AnswerForm]]] = {
    "text": ({}, lambda form: AnswerForm()),
    "json_object": ({}, lambda form: AnswerForm(grammar.json_object(), is_json=True)),
    "json_schema": ({"json_schema": dict}, _named_schema),
    "regex": ({"regex": str}, lambda form: AnswerForm(grammar.regex(form["regex"]))),
    "grammar": ({"grammar": str}, lambda form: AnswerForm(grammar.lark(form["grammar"]))),
}
"""type → what stands beside it, and its form."""


def _read(
    where: str, value: Mapping[str, Any], kinds: Mapping[str, type], *, required: Any
) -> Mapping[str, Any]:
    """The fields of an object that are given; null is absent."""
    for name in value:
        if name not in kinds:
            raise _refuse(f"{where}.{name}", f"left out: only {', '.join(kinds)} have a meaning there")
    given = {name: entry for name, entry in value.items() if entry is not None}
    for name in required:
        if name not in given:
            raise _refuse(f"{where}.{name}", "given")
    for name, entry in given.items():
        if not isinstance(entry, kinds[name]):
            raise _refuse(f"{where}.{name}", _KINDS[kinds[name]])
    return given


def _refuse(where: str, rule: str) -> RequestError:
    where = escaped(where)
    return RequestError(f"{where} must be {rule}.", code="invalid_value", param=where)
