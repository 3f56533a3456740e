"""Forms of answers: what each allows, what is refused, and that a matcher never allows more."""

from __future__ import annotations

import json
from typing import Any

import llguidance
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.errors import RequestError
from llmrs_cli.text import grammar
from llmrs_cli.text.grammar import GrammarCompiler
from llmrs_cli.text.grammar_child import COMPLEX, begins, compiled
from llmrs_cli.text.tokenizer import Tokenizer
from llmrs_cli.text.tools import ToolCall, ToolStyle, tool_parser
from tests.helpers.byte_tokenizer import END_OF_TEXT, IM_END, SPECIALS, byte_ids, byte_tokenizer_json

VOCAB = 400
"""More than the tokenizer has: the rest can never be allowed."""
TOKENIZER = Tokenizer(byte_tokenizer_json())
COMPILER = GrammarCompiler(TOKENIZER, VOCAB, [IM_END, END_OF_TEXT])
A = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


def allowed(mask: Any) -> set[int]:
    bits = np.unpackbits(np.asarray(mask).view(np.uint8), bitorder="little")
    return {int(token) for token in np.flatnonzero(bits)}


def takes(form: str, text: str) -> bool:
    """Whether a whole answer may be `text`, a byte at a time."""
    matcher = COMPILER.compile(form)
    for token in byte_ids(text):
        if token not in allowed(matcher.mask()):
            return False
        matcher.advance(token)
    return IM_END in allowed(matcher.mask())


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (
            grammar.json_object(),
            ["{}", '{"a": [1, null, "é"]}', '{\n "a": 1\n}'],
            ["", "[]", "hello", '{"a": NaN}', "{} x"],
        ),
        (
            grammar.json_schema(A),
            ['{"a": 1}', '{"a":-20}'],
            ["{}", '{"a": "1"}', '{"a": 1, "b": 2}', '{"a": 1.5}'],
        ),
        (
            grammar.json_schema({"type": "integer", "minimum": 5, "maximum": 6}),
            ["5", "6"],
            ["99", "4", "5.0"],
        ),
        (grammar.json_schema({"enum": ["é", "😊", "漢字"]}), ['"é"', '"😊"', '"漢字"'], ['"e"', "é"]),
        (
            grammar.json_schema({"type": "string", "format": "date"}),
            ['"2026-11-29"'],
            ['"2026-13-01"', '"today"'],
        ),
        (grammar.regex("[ab]{2}c?"), ["ab", "bbc"], ["a", "abcc", "cab"]),
        (grammar.lark('start: "yes" | "no"'), ["yes", "no"], ["maybe", "yesno"]),
    ],
)
def test_a_form_takes_what_it_says_and_nothing_else(form: str, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not takes(form, text)] == []
    assert [text for text in bad if takes(form, text)] == []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "uniqueItems": True},
        {"not": {}},
        {"type": "string", "format": "weird"},
        {"type": "string", "pattern": "(?=a)b"},
        {"type": "string", "pattern": "("},
        {"type": "blah"},
        {"type": "object", "if": {}},
        {"$ref": "#/nowhere"},
        {"$ref": "http://127.0.0.1:9/schema"},
        {"type": "integer", "minimum": 7, "maximum": 6},
        {"enum": [str(i) for i in range(3000)]},
        {"description": "x" * 70_000},
        {"x-guidance": {"lenient": True}, "not": {}},
        {"type": "array", "items": {"x-guidance": {"lenient": True}}},
        {"anyOf": []},
    ],
)
def test_a_schema_that_cannot_be_kept_to_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as error:
        COMPILER.compile(grammar.json_schema(schema))
    assert error.value.code == "invalid_grammar"
    assert error.value.param == "response_format"


def test_a_schema_may_not_be_nested_without_end() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(40):
        schema = {"type": "array", "items": schema}
    with pytest.raises(RequestError, match="nested"):
        grammar.json_schema(schema)


@pytest.mark.parametrize("form", [grammar.regex("(a"), grammar.lark("start: nothing"), grammar.lark("%%%")])
def test_what_is_no_grammar_is_refused(form: str) -> None:
    with pytest.raises(RequestError, match="cannot be followed"):
        COMPILER.compile(form)


@pytest.mark.parametrize("make", [grammar.regex, grammar.lark])
@pytest.mark.parametrize("source", ["", "a" * 70_000])
def test_a_source_has_a_length(make: Any, source: str) -> None:
    with pytest.raises(RequestError):
        make(source)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(.*)*b", "(a?){40}a{40}"])
def test_a_hostile_pattern_is_followed_in_linear_time(pattern: str) -> None:
    matcher = COMPILER.compile(grammar.regex(pattern))
    for token in byte_ids("a" * 40):
        matcher.advance(token)
    matcher.mask()


def test_a_pattern_that_outgrows_its_fuel_allows_nothing() -> None:
    matcher = COMPILER.compile(grammar.regex("((a{1,999}){1,999}){1,999}"))
    with pytest.raises(ValueError, match="cannot be followed"):
        for token in byte_ids("a" * 40):
            matcher.mask()
            matcher.advance(token)


def test_blank_space_between_tokens_has_an_end() -> None:
    assert takes(grammar.json_object(), '{        "a": 1}')
    assert not takes(grammar.json_object(), "{" + " " * 40 + '"a": 1}')


def test_only_end_tokens_follow_the_end() -> None:
    matcher = COMPILER.compile(grammar.regex("a"))
    matcher.advance(byte_ids("a")[0])
    assert allowed(matcher.mask()) == {IM_END, END_OF_TEXT}


def test_a_token_that_was_not_allowed_ends_the_matcher() -> None:
    matcher = COMPILER.compile(grammar.regex("a"))
    with pytest.raises(ValueError, match="breaks the grammar"):
        matcher.advance(byte_ids("b")[0])
    with pytest.raises(ValueError, match="cannot be followed"):
        matcher.mask()


def test_matchers_of_one_grammar_do_not_meet() -> None:
    form = grammar.regex("ab")
    first, second = COMPILER.compile(form), COMPILER.compile(form)
    first.advance(byte_ids("a")[0])
    assert allowed(second.mask()) == set(byte_ids("a"))


def test_no_control_token_and_no_id_without_a_token_is_ever_allowed() -> None:
    free = allowed(COMPILER.compile(grammar.regex(r"(?s:.*)")).mask())
    assert free.isdisjoint(set(SPECIALS.values()) - {IM_END, END_OF_TEXT})
    assert max(free) < 308


def test_without_an_end_token_nothing_can_be_held_to_a_form() -> None:
    with pytest.raises(RequestError, match="no end token"):
        GrammarCompiler(TOKENIZER, VOCAB, []).compile(grammar.json_object())


PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "g"}},
]
TAGGED_F = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def test_calls_are_what_the_parser_of_their_style_reads() -> None:
    one = grammar.tool_calls(ToolStyle.TAGGED, TOOLS, several=False)
    several = grammar.tool_calls(ToolStyle.TAGGED, TOOLS, several=True)
    assert takes(one, TAGGED_F)
    assert not takes(one, f"{TAGGED_F}\n{TAGGED_F}")
    assert takes(several, f"{TAGGED_F}\n{TAGGED_F}")
    assert not takes(one, TAGGED_F.replace("1", '"1"'))
    assert not takes(one, TAGGED_F.replace('"f"', '"h"'))
    assert tool_parser(ToolStyle.TAGGED, {"f"}).push(TAGGED_F) == [ToolCall("f", '{"a": 1}')]


def test_bare_calls_have_parameters() -> None:
    form = grammar.tool_calls(ToolStyle.BARE, TOOLS[:1], several=False)
    assert takes(form, '{"name": "f", "parameters": {"a": 1}}')
    assert not takes(form, '{"name": "f", "arguments": {"a": 1}}')


STRICT = [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS, "strict": True}}, TOOLS[1]]


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("", True),
        ("Let me see. <tool_cal", True),
        (f"Let me see.\n{TAGGED_F}\n{TAGGED_F} Done.", True),
        (TAGGED_F.replace("1", '"1"'), False),
        (TAGGED_F.replace('"f"', '"h"'), False),
        (f"{TAGGED_F}{TAGGED_F.replace('1', '1.5')}", False),
        (TAGGED_F.replace('"f"', '"g"').replace("1", '"anything"'), True),
        ("<tool_call>\nno call", False),
    ],
)
def test_strict_tools_are_called_by_their_schema_or_not_at_all(text: str, taken: bool) -> None:
    assert takes(grammar.strict_calls(ToolStyle.TAGGED, STRICT), text) is taken


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("", True),
        ("Let {me} see.", True),
        ('{"name": "f", "parameters": {"a": 1}}', True),
        ('{"name": "f", "parameters": {"a": "1"}}', False),
        ('\n {"a": 1}', False),
        (" \nA {", True),
    ],
)
def test_so_are_those_that_stand_bare(text: str, taken: bool) -> None:
    assert takes(grammar.strict_calls(ToolStyle.BARE, STRICT), text) is taken


def test_a_tool_whose_schema_cannot_be_kept_to_is_refused() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "not": {}}}}
    with pytest.raises(RequestError):
        COMPILER.compile(grammar.tool_calls(ToolStyle.TAGGED, [tool], several=False))


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-99, 99)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=2),
    max_leaves=5,
)


@given(st.dictionaries(st.text("abc", max_size=3), values, max_size=3))
def test_every_json_object_is_taken_by_json_object(value: dict[str, Any]) -> None:
    assert takes(grammar.json_object(), json.dumps(value, ensure_ascii=False))


def test_a_grammar_that_can_be_followed_has_no_trouble() -> None:
    for form in (grammar.json_object(), grammar.json_schema(A), grammar.regex("a{3}"), grammar.one_of(["x"])):
        assert COMPILER.trouble(form) == ""


def test_trouble_is_found_with_the_tokens_of_the_model() -> None:
    assert "cannot be followed" in COMPILER.trouble(grammar.json_schema({"not": {}}))
    assert "no end token" in GrammarCompiler(TOKENIZER, VOCAB, []).trouble(grammar.json_object())


def test_answers_that_cannot_be_begun_are_trouble() -> None:
    form = grammar.json_schema({"properties": {f"p{i}": {"type": "integer"} for i in range(40)}})
    limits = llguidance.LLParserLimits(step_max_items=100, verbose_errors=False)
    narrow = llguidance.LLMatcher(COMPILER._vocabulary(), form, log_level=0, limits=limits)
    assert begins(narrow, [IM_END]) == COMPLEX
    assert begins(compiled(COMPILER._vocabulary(), form), [IM_END]) == ""


def test_the_grammars_used_last_are_kept_and_no_more() -> None:
    tried: list[str] = []

    class Counting(GrammarCompiler):
        def _try(self, grammar: str) -> Any:
            tried.append(grammar)
            return super()._try(grammar)

    compiler = Counting(TOKENIZER, VOCAB, [IM_END])
    forms = [grammar.lark(f'start: "{number}"') for number in range(grammar.MAX_CACHED + 1)]
    for form in (*forms[:-1], forms[0], forms[-1], forms[0], forms[1]):
        compiler.compile(form)
    assert tried == [*forms, forms[1]], "the second was used longest ago when the last one came"


def test_copies_of_a_matcher_begin_alike_and_go_their_own_ways() -> None:
    form = grammar.regex("ab|cd")
    first, second = COMPILER.compile(form), COMPILER.compile(form)
    (a,), (c,), (d,) = (byte_ids(letter) for letter in "acd")
    first.advance(a)
    assert allowed(second.mask()) == {a, c}
    second.advance(c)
    assert allowed(second.mask()) == {d}
    assert allowed(COMPILER.compile(form).mask()) == {a, c}


def test_a_grammar_of_which_not_even_the_first_token_can_be_found_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    form = grammar.json_schema({"properties": {f"p{i}": {"type": "integer"} for i in range(41)}})
    limits = llguidance.LLParserLimits(step_max_items=1, verbose_errors=False)

    def narrow(vocabulary: Any, source: str) -> Any:
        return llguidance.LLMatcher(vocabulary, source, log_level=0, limits=limits)

    monkeypatch.setattr(grammar, "compiled", narrow)
    with pytest.raises(RequestError) as error:
        COMPILER.compile(form, "f")
    assert (error.value.code, error.value.param) == ("invalid_grammar", "f")


def test_only_so_many_compiled_grammars_are_kept_and_those_that_were_used_last() -> None:
    compiler = GrammarCompiler(TOKENIZER, VOCAB, [IM_END])
    forms = [grammar.regex(f"a{{{number}}}") for number in range(1, grammar.MAX_CACHED + 3)]
    for form in forms:
        compiler.compile(forms[0])
        compiler.compile(form)
    assert list(compiler._compiled) == [*forms[3:-1], forms[0], forms[-1]]
