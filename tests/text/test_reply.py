"""An answer's thought, words and calls together: the same however it is cut, and nothing said is lost."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from llmrs_cli.text.reasoning import Opening, ReasoningSplitter, ThoughtTokens
from llmrs_cli.text.reply import Part, ReplyParser
from llmrs_cli.text.tools import ToolCall, ToolStyle, tool_parser

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
BARE = '{"name": "f", "parameters": {"a": 1}}'
F = ToolCall("f", '{"a": 1}')
PARTS = st.lists(
    st.sampled_from(["<think>", "</think>", CALL, BARE, "<tool_call>", "a", " ", "\n", "<", "b c", "é"]),
    max_size=6,
).map("".join)


def parser(start: Opening = Opening.UNDECIDED, style: ToolStyle | None = ToolStyle.TAGGED) -> ReplyParser:
    tools = None if style is None else tool_parser(style, {"f"})
    return ReplyParser(ReasoningSplitter(start), tools, ThoughtTokens(start, lambda token: bytes([token])))


def told(reply: ReplyParser, *pieces: str) -> Part:
    """Everything that came out, of each kind."""
    parts = [*(reply.push(piece, piece.encode()) for piece in pieces), reply.finish()]
    return Part(
        "".join(part.reasoning for part in parts),
        "".join(part.content for part in parts),
        tuple(call for part in parts for call in part.calls),
    )


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", Part()),
        ("Hi", Part("", "Hi")),
        ("<think>hm</think>Hi", Part("hm", "Hi")),
        (f"<think>hm</think>\n\n{CALL}", Part("hm", "", (F,))),
        (f"Well. {CALL}", Part("", "Well.", (F,))),
        (f"{CALL}{CALL}", Part("", "", (F, F))),
        (f"<think>{CALL}</think>Hi", Part(CALL, "Hi")),
        ("<think>hm", Part("hm")),
        (f"{CALL} Done.", Part("", "Done.", (F,))),
    ],
)
def test_what_an_answer_holds(text: str, part: Part) -> None:
    assert told(parser(), text) == part


def test_without_tools_a_call_is_text() -> None:
    assert told(parser(style=None), f"<think>hm</think>{CALL}") == Part("hm", CALL)


def test_without_thoughts_tags_are_text() -> None:
    reply = ReplyParser(None, tool_parser(ToolStyle.TAGGED, {"f"}))
    assert told(reply, f"<think>hm</think>{CALL}") == Part("", "<think>hm</think>", (F,))
    assert reply.thought_tokens == 0


def test_without_either_everything_is_content() -> None:
    assert told(ReplyParser(None, None), f"<think>x</think>{CALL}") == Part("", f"<think>x</think>{CALL}")


def test_a_call_is_given_out_with_the_piece_that_completes_it() -> None:
    reply = parser()
    assert reply.push("a ") == Part("", "a")
    assert reply.push(CALL[:-1]) == Part()
    assert reply.push(CALL[-1]) == Part("", "", (F,))
    assert reply.finish() == Part()


@given(
    PARTS,
    st.lists(st.integers(0, 99), max_size=5),
    st.sampled_from(Opening),
    st.sampled_from([None, *ToolStyle]),
)
def test_pieces_make_no_difference(
    text: str, cuts: list[int], start: Opening, style: ToolStyle | None
) -> None:
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in zip(places, places[1:], strict=False)]
    whole, cut = parser(start, style), parser(start, style)
    assert told(whole, text) == told(cut, *pieces)


@given(PARTS, st.sampled_from(Opening))
def test_every_word_is_thought_or_said_or_called(text: str, start: Opening) -> None:
    assume(BARE not in text)  # behind a tag it is a call too, of another length
    part = told(parser(start), text)
    found = part.reasoning + part.content + "".join(CALL for _ in part.calls)
    marks = ("<think>", "</think>", " ", "\n")

    def bare(words: str) -> list[str]:
        for mark in marks:
            words = words.replace(mark, "")
        return sorted(words)

    assert bare(found) == bare(text)


@given(PARTS, st.sampled_from(Opening))
def test_tokens_are_counted_where_there_is_a_thought(text: str, start: Opening) -> None:
    reply = parser(start)
    part = told(reply, text)
    assert 0 <= reply.thought_tokens <= len(text.encode())
    if part.reasoning:
        assert reply.thought_tokens >= len(part.reasoning.encode())
    if start is Opening.ANSWER:
        assert reply.thought_tokens == 0 and part.reasoning == ""


@pytest.mark.parametrize(("thought", "calls"), list(product([False, True], [0, 1, 3])))
def test_all_kinds_go_together(thought: bool, calls: int) -> None:
    text = ("<think>hm</think>" if thought else "") + "Said." + CALL * calls
    part = told(parser(), *text)
    assert part == Part("hm" if thought else "", "Said.", (F,) * calls)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (BARE, Part("", "", (F,))),
        (f"{BARE}; {BARE}", Part("", "", (F, F))),
        (f"So: {BARE}", Part("", f"So: {BARE}")),
    ],
)
def test_calls_without_tags_are_the_whole_answer_or_text(text: str, part: Part) -> None:
    assert told(parser(style=ToolStyle.BARE), text) == part
    assert told(parser(style=ToolStyle.BARE), *text) == part
