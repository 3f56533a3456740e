"""Tool calls in an answer's text: the same in one piece and split anywhere, and text is never lost."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.text.reasoning import Opening, ReasoningSplitter
from llmrs_cli.text.reply import Part, ReplyParser
from llmrs_cli.text.tools import Said, ToolCall, ToolStyle, tool_parser, tool_style

F = ToolCall("f", '{"a": 1}')
TAGGED_F = '<tool_call>\n{"name": "f", "arguments": {"a":1}}\n</tool_call>'


def parse(style: ToolStyle, pieces: Sequence[str]) -> list[Said]:
    """What an answer said, neighbouring texts joined."""
    parser = tool_parser(style, {"f", "g"})
    said = [item for piece in pieces for item in parser.push(piece)] + parser.finish()
    joined: list[Said] = []
    for item in said:
        if joined and isinstance(item, str) and isinstance(joined[-1], str):
            joined[-1] += item
        else:
            joined.append(item)
    return joined


TAGGED = [
    ("Hello", ["Hello"]),
    ("Hello\n", ["Hello\n"]),
    ("", []),
    (TAGGED_F, [F]),
    (f"Well.\n{TAGGED_F}", ["Well.", F]),
    (f"{TAGGED_F}\n{TAGGED_F}\n", [F, F]),
    (f"{TAGGED_F}\nDone. ", [F, "Done. "]),
    ('<tool_call>{"name": "g"}</tool_call>', [ToolCall("g", "{}")]),
    (
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>',
        [ToolCall("f", '{"a": "</tool_call>"}')],
    ),
    ('<tool_call>{"name": "f", "arguments": {"a": "\\"}"}}</tool_call>', [ToolCall("f", '{"a": "\\"}"}')]),
    ('<tool_call>{"name": "f", "arguments": {"é": "☃"}}</tool_call>', [ToolCall("f", '{"é": "☃"}')]),
    # The end is missing, but the call is whole.
    ('<tool_call>{"name": "f", "arguments": {"a":1}}', [F]),
]
TEXT = [
    '<tool_call>{"name": "f", "arguments": {</tool_call>',
    '<tool_call>{"name": "h", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": "x"}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
    '<tool_call>["f"]</tool_call> and more',
    "<tool_call>",
    "<tool_cal",
    "a < b <tool> </tool_call>",
    "<tool_call>" + "[" * 5000 + "</tool_call>",
]
BARE = [
    ('{"name": "f", "parameters": {"a":1}}', [F]),
    (' {"name": "f", "arguments": {"a":1}}; {"name": "g", "parameters": {}}\n', [F, ToolCall("g", "{}")]),
    ("Hello {", ["Hello {"]),
    ('{"name": "h", "parameters": {}}', ['{"name": "h", "parameters": {}}']),
    ('{"name": "f", "parameters": {}} or not', ['{"name": "f", "parameters": {}} or not']),
    ('{"name": "f", "par', ['{"name": "f", "par']),
    ("", []),
]


@pytest.mark.parametrize(("text", "said"), TAGGED)
def test_tagged_calls_are_found_wherever_pieces_end(text: str, said: list[Said]) -> None:
    for cut in range(len(text) + 1):
        assert parse(ToolStyle.TAGGED, [text[:cut], text[cut:]]) == said
    assert parse(ToolStyle.TAGGED, list(text)) == said


@pytest.mark.parametrize("text", TEXT)
def test_what_is_no_call_stays_the_text_it_is(text: str) -> None:
    assert parse(ToolStyle.TAGGED, [text]) == [text]
    assert parse(ToolStyle.TAGGED, list(text)) == [text]


@pytest.mark.parametrize(("text", "said"), BARE)
def test_bare_calls_are_found_wherever_pieces_end(text: str, said: list[Said]) -> None:
    for cut in range(len(text) + 1):
        assert parse(ToolStyle.BARE, [text[:cut], text[cut:]]) == said


FRAGMENTS = (
    "<tool_call>",
    "</tool_call>",
    '{"name": "f", "arguments": {}}',
    '"',
    "\\",
    "<",
    " ",
    "\n",
    "é",
    "{",
    "}",
    "x",
)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=14), st.sampled_from(ToolStyle))
def test_pieces_make_no_difference(fragments: list[str], style: ToolStyle) -> None:
    text = "".join(fragments)
    assert parse(style, fragments) == parse(style, [text]) == parse(style, list(text))


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=14))
def test_nothing_but_blank_space_is_lost(fragments: list[str]) -> None:
    text = "".join(fragments)
    said = parse(ToolStyle.TAGGED, fragments)
    if not any(isinstance(item, ToolCall) for item in said):
        assert "".join(map(str, said)) == text
    for item in said:
        if isinstance(item, ToolCall):
            assert isinstance(json.loads(item.arguments), dict)


@pytest.mark.parametrize("body", ["[", '{"a":', '"\\"', "<", "</tool_call", "\n"])
def test_a_long_answer_is_read_to_its_end(body: str) -> None:
    text = "<tool_call>" + body * 50_000
    assert parse(ToolStyle.TAGGED, [text[i : i + 7] for i in range(0, len(text), 7)]) == [text]


def test_a_template_shows_how_its_model_calls() -> None:
    assert tool_style("... <tool_call> ...") is ToolStyle.TAGGED
    assert tool_style('{"name": function name, "parameters": ...}') is ToolStyle.BARE
    assert tool_style("<|python_tag|>") is ToolStyle.BARE
    assert tool_style("") is ToolStyle.TAGGED


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_a_reply_has_thoughts_words_and_calls(cut: int) -> None:
    text = f"<think>hm</think>Well. {TAGGED_F}"
    parser = ReplyParser(ReasoningSplitter(Opening.UNDECIDED), tool_parser(ToolStyle.TAGGED, {"f"}))
    parts = [parser.push(text[:cut]), parser.push(text[cut:]), parser.finish()]
    assert "".join(part.reasoning for part in parts) == "hm"
    assert "".join(part.content for part in parts) == "Well."
    assert [call for part in parts for call in part.calls] == [F]


def test_a_plain_reply_is_content() -> None:
    parser = ReplyParser(None, None)
    assert parser.push(TAGGED_F) == Part("", TAGGED_F)
    assert parser.finish() == Part()
