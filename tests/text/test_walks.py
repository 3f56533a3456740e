"""Random walks through what a form allows: wherever one ends, the answer has the form, by another reader than ours."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrs_cli.text import grammar
from llmrs_cli.text.grammar import GrammarCompiler
from llmrs_cli.text.tokenizer import Tokenizer
from llmrs_cli.text.tools import ToolCall, ToolStyle, tool_parser
from tests.helpers.byte_tokenizer import END_OF_TEXT, IM_END, byte_ids, byte_tokenizer_json

TOKENIZER = Tokenizer(byte_tokenizer_json())
COMPILER = GrammarCompiler(TOKENIZER, 320, [IM_END, END_OF_TEXT])
CLOSING = set(byte_ids('"}]'))
BLANKS = set(byte_ids(" \n"))
STEPS = 3000
SEEDS = st.integers(0, 1 << 30)


def walk(form: str, seed: int) -> str:
    """An answer of random tokens, each allowed where it stands; what closes something comes more often."""
    chance = random.Random(seed)
    matcher = COMPILER.compile(form)
    answer: list[int] = []
    for _ in range(STEPS):
        bits = np.unpackbits(np.asarray(matcher.mask()).view(np.uint8), bitorder="little")
        allowed = [int(token) for token in np.flatnonzero(bits)]
        if IM_END in allowed and (len(allowed) <= 2 or chance.random() < 0.5):
            return TOKENIZER.decode(answer)
        allowed = [token for token in allowed if token not in (IM_END, END_OF_TEXT)]
        closing = [token for token in allowed if token in CLOSING]
        token = chance.choice(closing if closing and chance.random() < 0.4 else allowed)
        matcher.advance(token)
        answer.append(token)
    pytest.fail(f"no end after {TOKENIZER.decode(answer)[:200]!r}")


PATTERNS = ["[ab]{2}c?", r"[0-9]{4}-[0-9]{2}", "(yes|no)( or (yes|no)){0,2}", "[^x]{1,3}", "a*b+"]


@pytest.mark.parametrize("pattern", PATTERNS)
@settings(max_examples=12)
@given(seed=SEEDS)
def test_a_pattern_matches_the_whole_answer(pattern: str, seed: int) -> None:
    assert re.fullmatch(pattern, walk(grammar.regex(pattern), seed))


@settings(max_examples=12)
@given(seed=SEEDS, texts=st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=4))
def test_an_answer_is_one_of_the_texts(seed: int, texts: list[str]) -> None:
    assert walk(grammar.one_of(texts), seed) in texts


def pairs(value: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are all different."""
    made = dict(value)
    assert len(made) == len(value)
    return made


SCHEMAS: dict[str, tuple[dict[str, Any], Any]] = {
    "bounds": ({"type": "integer", "minimum": -7, "maximum": 42}, lambda v: -7 <= v <= 42 and v == int(v)),
    "enum": ({"enum": ["a", 1, None, [2]]}, lambda v: v in ("a", 1, None, [2])),
    "string": (
        {"type": "string", "minLength": 2, "maxLength": 4},
        lambda v: isinstance(v, str) and 2 <= len(v) <= 4,
    ),
    "list": (
        {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
        lambda v: 1 <= len(v) <= 3 and all(isinstance(item, bool) for item in v),
    ),
    "object": (
        {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"enum": ["p", "q"]}},
            "required": ["x"],
            "additionalProperties": False,
        },
        lambda v: isinstance(v["x"], int) and v.keys() <= {"x", "y"} and v.get("y", "p") in ("p", "q"),
    ),
    "choice": (
        {"anyOf": [{"type": "null"}, {"type": "array", "items": {"const": "z"}, "maxItems": 2}]},
        lambda v: v is None or (len(v) <= 2 and all(item == "z" for item in v)),
    ),
    "reference": (
        {"$defs": {"n": {"type": "integer", "minimum": 0}}, "type": "array", "items": {"$ref": "#/$defs/n"}},
        lambda v: all(isinstance(item, int) and item >= 0 for item in v),
    ),
}


@pytest.mark.parametrize("name", SCHEMAS)
@settings(max_examples=12)
@given(seed=SEEDS)
def test_an_answer_conforms_to_its_schema(name: str, seed: int) -> None:
    schema, holds = SCHEMAS[name]
    assert holds(json.loads(walk(grammar.json_schema(schema), seed), object_pairs_hook=pairs))


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "say",
            "parameters": {
                "properties": {"text": {"type": "string", "maxLength": 20}},
                "required": ["text"],
                "additionalProperties": False,
            },
        },
    },
]
NAMES = {"add": {"a", "b"}, "say": {"text"}}


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("style", ToolStyle)
@settings(max_examples=12)
@given(seed=SEEDS)
def test_a_forced_answer_is_calls_and_nothing_else(style: ToolStyle, several: bool, seed: int) -> None:
    """Whatever strings hold, closing tags and braces too: the parser reads each call that the grammar let through."""
    answer = walk(grammar.tool_calls(style, TOOLS, several=several), seed)
    parser = tool_parser(style, NAMES)
    said = [*parser.push(answer), *parser.finish()]
    assert said and all(isinstance(call, ToolCall) for call in said), answer
    assert len(said) == 1 or (several and style is ToolStyle.TAGGED)
    for call in said:
        assert isinstance(call, ToolCall)
        assert json.loads(call.arguments).keys() == NAMES[call.name]
