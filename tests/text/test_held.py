"""What parsers hold back comes out again, and what they hold costs nothing more while they hold it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrs_cli.text.held import TrailingBlanks, begun
from llmrs_cli.text.reasoning import Opening, ReasoningSplitter, ThoughtTokens
from llmrs_cli.text.reply import ReplyParser
from llmrs_cli.text.tools import ToolStyle, tool_parser
from tests.helpers.looked import looked

PIECES = st.lists(st.text("a \n", max_size=4), max_size=12)
FRAGMENTS = st.sampled_from(
    [
        " " * 16,
        "\n",
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<",
        "<<<<",
        "{",
        '"',
        "\\",
        "word ",
    ]
)
A_CHARACTER, A_PUSH = 40, 400
"""Steps that one character of an answer may take, and one piece of it, however long the answer is."""


@given(PIECES)
def test_text_comes_out_whole_and_ends_in_no_blank_before_its_end(pieces: list[str]) -> None:
    blanks = TrailingBlanks()
    certain = ""
    for piece in pieces:
        certain += blanks.push(piece)
        assert certain == certain.rstrip()
    assert certain + blanks.take() == "".join(pieces)
    assert blanks.take() == ""


@given(st.text("<ab>", max_size=12), st.integers(0, 12))
def test_the_longest_beginning_of_a_tag_is_found_behind_a_place(text: str, start: int) -> None:
    tag = "<ab>"
    ends = [n for n in range(1, len(tag)) if text[start:].endswith(tag[:n])]
    assert begun(text, tag, start) == max(ends, default=0)


def parsers() -> dict[str, Callable[[], ReplyParser]]:
    """One for each way in which an answer may begin, and its calls be spelled."""

    def make(start: Opening, style: ToolStyle) -> Callable[[], ReplyParser]:
        def parser() -> ReplyParser:
            count = ThoughtTokens(start, lambda token: bytes([token]))
            return ReplyParser(ReasoningSplitter(start), tool_parser(style, {"f"}), count)

        return parser

    return {f"{start.name} {style.name}": make(start, style) for start in Opening for style in ToolStyle}


PARSERS = parsers()


def steps(make: Callable[[], ReplyParser], pieces: Sequence[str]) -> int:
    parser = make()

    def work() -> None:
        for piece in pieces:
            parser.push(piece, piece.encode())
        parser.finish()

    return looked(work)


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("first", ["", "<think>", "<tool_call>", '<tool_call>{"a": "', "word"])
@pytest.mark.parametrize("piece", [" " * 16, "\n", "<", "x <"])
def test_a_piece_costs_the_same_after_any_number_of_its_kind(name: str, first: str, piece: str) -> None:
    few, many = (steps(PARSERS[name], [first, *[piece] * count]) for count in (300, 900))
    assert many - few <= 2.2 * few


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=15)
@given(fragments=st.lists(FRAGMENTS, min_size=1, max_size=8), times=st.integers(1, 60))
def test_an_answer_costs_no_more_than_its_characters_and_its_pieces(
    name: str, fragments: list[str], times: int
) -> None:
    pieces = fragments * times
    assert steps(PARSERS[name], pieces) <= A_CHARACTER * len("".join(pieces)) + A_PUSH * (len(pieces) + 1)
