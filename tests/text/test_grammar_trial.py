"""Grammars of strangers: whatever they would cost, the answer comes soon, and it is no."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import llguidance
import pytest

from llmrs_cli.errors import LlmrsError, RequestError
from llmrs_cli.text import grammar
from llmrs_cli.text.grammar_child import END, Bytes, trouble
from llmrs_cli.text.grammar_trial import LOST, GrammarTrial
from tests.helpers.tool_schemas import tool_schemas

ENDLESS = grammar.json_schema({"type": "integer", "multipleOf": 9_999_991})
"""Hours of work for the library that compiles it."""
HOSTILE: dict[str, dict[str, Any]] = {
    "a circle": {"$ref": "#/a", "a": {"$ref": "#/a"}},
    "a circle of all": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"type": "object"}]}},
    },
    "a product": {
        "allOf": [
            {"anyOf": [{"type": "string", "pattern": f".*{a}{b}.*"} for b in "abcdef"]} for a in "abcdefghij"
        ]
    },
    "many at once": {
        "allOf": [{"type": "string", "pattern": f"^.*{a}.*$"} for a in "abcdefghijklmnopqrstuvwxyz"]
    },
    "looking behind": {"type": "string", "pattern": "(?<=a)b"},
    "nothing repeated": {"type": "string", "pattern": "*a"},
    "an odd range": {"type": "number", "minimum": -1.2345678901234e-300, "maximum": 1e300},
}
HARMLESS: dict[str, dict[str, Any]] = {
    "a long text": {"type": "string", "maxLength": 10**9},
    "a long list": {"type": "array", "items": {"type": "integer"}, "maxItems": 10**9},
    "two of two of two": {
        "$ref": "#/$defs/a0",
        "$defs": {
            **{f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(30)},
            "a30": {"type": "integer"},
        },
    },
    "many choices": {"enum": [f"value-{i}" for i in range(2000)]},
    "backtracking": {"type": "string", "pattern": "^(a+)+$"},
    "many fields that may be left out": {"properties": {f"p{i}": {"type": "integer"} for i in range(400)}},
}


@pytest.fixture(scope="module")
def trial() -> Iterator[GrammarTrial]:
    trial = GrammarTrial()
    yield trial
    trial.close()


@pytest.fixture(scope="module")
def vocabulary() -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()), n_vocab=END + 1, eos_token=END)


@pytest.mark.parametrize("schema", HOSTILE.values(), ids=list(HOSTILE))
def test_a_schema_that_would_cost_too_much_is_refused(
    vocabulary: llguidance.LLTokenizer, schema: dict[str, Any]
) -> None:
    assert trouble(vocabulary, grammar.json_schema(schema)).startswith("The form cannot be followed")


@pytest.mark.parametrize("schema", HARMLESS.values(), ids=list(HARMLESS))
def test_what_only_looks_expensive_is_followed(
    vocabulary: llguidance.LLTokenizer, schema: dict[str, Any]
) -> None:
    assert trouble(vocabulary, grammar.json_schema(schema)) == ""


@pytest.mark.parametrize(
    "pattern", ["(((((a{1000}){1000}){1000}){1000}){1000})", "(" * 1000 + "a" + ")" * 1000]
)
def test_a_pattern_that_would_cost_too_much_is_refused(
    vocabulary: llguidance.LLTokenizer, pattern: str
) -> None:
    assert trouble(vocabulary, grammar.regex(pattern)) != ""


@pytest.mark.parametrize(
    "source",
    [
        "start: " + "(" * 20_000 + '"a"' + ")" * 20_000,
        "start: " + " ".join(["x"] * 15_000) + '\nx: "a" | "" | x x',
        'start: "a"\nstart: "b',
    ],
    ids=["nested", "ambiguous", "unfinished"],
)
def test_a_grammar_that_would_cost_too_much_is_refused(
    vocabulary: llguidance.LLTokenizer, source: str
) -> None:
    assert trouble(vocabulary, grammar.lark(source)) != ""


def test_schemas_of_real_tools_are_followed(vocabulary: llguidance.LLTokenizer) -> None:
    schemas = list(tool_schemas())
    refused = [schema for schema in schemas if trouble(vocabulary, grammar.json_schema(schema))]
    assert len(schemas) >= 200
    assert refused == []


def test_one_that_does_not_end_is_ended_and_the_next_is_tried(trial: GrammarTrial) -> None:
    with pytest.raises(RequestError, match="too long") as error:
        trial.check(ENDLESS, "tools")
    assert (error.value.code, error.value.param) == ("invalid_grammar", "tools")
    trial.check(grammar.json_object(), "x")


def test_a_verdict_is_kept(trial: GrammarTrial) -> None:
    for _ in range(3):  # the second would take as long again
        with pytest.raises(RequestError, match="too long"):
            trial.check(ENDLESS, "x")


def test_what_is_known_is_said_while_another_one_is_tried() -> None:
    known, endless = grammar.regex("known"), grammar.regex("endless")
    trying, release = threading.Event(), threading.Event()

    def wait(form: str) -> str:
        if form == endless:
            trying.set()
            release.wait()
        return ""

    trial = GrammarTrial(further=wait)
    trial.check(known, "x")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(trial.check, endless, "x")
        trying.wait()
        assert trial.knows(known)
        trial.check(known, "x")
        assert not trial.knows(endless)
        assert not asked.done()
        release.set()
        asked.result()
    assert trial.knows(endless)
    trial.close()


def test_what_passes_there_may_be_refused_here_and_that_is_kept_too() -> None:
    asked: list[str] = []

    def refuse(form: str) -> str:
        asked.append(form)
        return "Not here."

    trial = GrammarTrial(further=refuse)
    for _ in range(2):
        with pytest.raises(RequestError, match="Not here"):
            trial.check(grammar.json_object(), "x")
    with pytest.raises(RequestError, match="cannot be followed"):
        trial.check(grammar.json_schema({"not": {}}), "x")
    assert asked == [grammar.json_object()]
    trial.close()


def test_why_a_grammar_is_refused_is_said(trial: GrammarTrial) -> None:
    with pytest.raises(RequestError, match="not supported|cannot be followed"):
        trial.check(grammar.json_schema({"not": {}}), "x")


def test_threads_may_share_it(trial: GrammarTrial) -> None:
    forms = [grammar.regex(f"a{{{number}}}") for number in range(8)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda form: trial.check(form, "x"), forms * 2))


def test_a_process_that_was_lost_is_replaced() -> None:
    trial = GrammarTrial((sys.executable, "-c", "import sys; sys.stdin.read(1)"))
    for form in ("a", "b"):
        with pytest.raises(RequestError, match=LOST):
            trial.check(form, "x")
    trial.close()


def test_without_a_process_nothing_passes(tmp_path: Path) -> None:
    trial = GrammarTrial((str(tmp_path / "nothing"),))
    with pytest.raises(LlmrsError, match="cannot be checked"):
        trial.check(grammar.json_object(), "x")
    trial.close()


def test_it_ends_with_its_owner() -> None:
    trial = GrammarTrial()
    trial.check(grammar.json_object(), "x")
    assert trial._process is not None
    pid = trial._process.pid
    trial.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
