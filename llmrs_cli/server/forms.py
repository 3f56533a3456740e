"""Where a body says what its answer is held to: OpenAI's response_format, or vLLM's structured_outputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llmrs_cli.server.kinds import Kind, array, either, one_of, plain_object, record, refuse, text
from llmrs_cli.text import grammar
from llmrs_cli.text.forms import answer_form
from llmrs_cli.text.grammar import FIELD

STRUCTURED = "structured_outputs"
MAX_CHOICES = 1000
STRUCTURES: Mapping[str, tuple[Kind, Callable[[Any], str]]] = {
    "json": (
        either("a schema, as an object or as its text", plain_object(), text()),
        lambda value: grammar.json_schema(_schema(value), STRUCTURED),
    ),
    "json_object": (one_of(True), lambda value: grammar.json_object()),
    "regex": (text(), lambda value: grammar.regex(value, STRUCTURED)),
    "choice": (array(text(256, 1), MAX_CHOICES, 1), lambda value: grammar.one_of(value, STRUCTURED)),
    "grammar": (text(), lambda value: grammar.lark(value, STRUCTURED)),
}
"""What structured_outputs may hold, one of these; a grammar is written in Lark's notation."""
STRUCTURED_OUTPUTS = record({name: kind for name, (kind, _) in STRUCTURES.items()})


@dataclass(frozen=True, slots=True)
class AskedForm:
    """What an answer is held to."""

    grammar: str = ""
    """Of `text.grammar`; "" for free text."""
    field: str = FIELD
    """Where the client asked for it."""


def asked_form(given: Mapping[str, Any]) -> AskedForm:
    """The form that a body asks for. RequestError for one that is none of ours."""
    structure = given.get(STRUCTURED)
    if structure is None:
        return (
            AskedForm(answer_form(given["response_format"]).grammar) if "response_format" in given else FREE
        )
    if "response_format" in given:
        raise refuse(STRUCTURED, "left out where there is a response_format")
    if len(structure) != 1:
        raise refuse(STRUCTURED, f"an object with one of {', '.join(STRUCTURES)}")
    ((name, value),) = structure.items()
    return AskedForm(STRUCTURES[name][1](value), STRUCTURED)


FREE = AskedForm()


def _schema(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        schema = json.loads(value)
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise refuse(f"{STRUCTURED}.json", "a JSON object")
    return schema
