"""Emphasis inside a line: the same however the line grows, and every character that is no mark is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.chat.inline import Inline, Style

B, S, C, P = Style.BOLD, Style.ITALIC, Style.CODE, Style.PLAIN
"""S: slanted."""
Piece = tuple[str, Style]


def pieces(*parts: str, end: bool = True) -> list[Piece]:
    """What comes out, neighbours of one style joined."""
    found: list[Piece] = []

    def sink(text: str, style: Style) -> None:
        if found and found[-1][1] == style:
            text = found.pop()[0] + text
        found.append((text, style))

    inline = Inline(sink)
    for part in parts:
        inline.push(part)
    if end:
        inline.end_line()
    return found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("plain", [("plain", P)]),
        ("*a*", [("a", S)]),
        ("**a**", [("a", B)]),
        ("***a***", [("a", B | S)]),
        ("**a *b* c**", [("a ", B), ("b", B | S), (" c", B)]),
        ("__a__ _b_", [("a", B), (" ", P), ("b", S)]),
        ("`a*b*`", [("a*b*", C)]),
        ("``a`b``", [("a`b", C)]),
        ("**`a`**", [("a", B | C)]),
        ("a * b", [("a * b", P)]),
        ("2*3*4", [("2*3*4", P)]),
        ("a_b_c", [("a_b_c", P)]),
        ("_a_b", [("a_b", S)]),
        ("****", [("****", P)]),
        (r"\*a\*", [("*a*", P)]),
        (r"\a", [(r"\a", P)]),
        ("a\\", [("a\\", P)]),
        (r"\`a\`", [("`a`", P)]),
        ("`\\*`", [("\\*", C)]),
        ("é**b**", [("é", P), ("b", B)]),
        ("a**b**", [("a**b**", P)]),
    ],
)
def test_what_marks_mean(text: str, found: list[Piece]) -> None:
    assert pieces(text) == found


MARKED = st.text(st.sampled_from(list("*_`\\ab .中")), max_size=24)


@given(MARKED, st.lists(st.integers(0, 24), max_size=6))
def test_a_line_is_the_same_however_it_is_cut(text: str, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [text[start:end] for start, end in zip(places, places[1:], strict=False)]
    assert pieces(*parts) == pieces(text)


@given(MARKED)
def test_only_marks_are_taken_away(text: str) -> None:
    kept = "".join(piece for piece, _ in pieces(text))
    rest = iter(text)
    assert all(char in rest for char in kept), "in their order"
    assert [char for char in text if char not in "*_`\\"] == [char for char in kept if char not in "*_`\\"]


@given(st.text(st.characters(exclude_characters="*_`\\")))
def test_a_text_without_marks_is_left_alone(text: str) -> None:
    assert pieces(text) == ([(text, P)] if text else [])


@given(MARKED)
def test_what_was_given_out_is_the_beginning_of_the_whole(text: str) -> None:
    """A terminal shows it already."""
    whole = [(char, style) for piece, style in pieces(text + "b") for char in piece]
    early = [(char, style) for piece, style in pieces(text, end=False) for char in piece]
    assert whole[: len(early)] == early


def test_the_end_of_a_piece_is_held_while_it_may_be_a_mark() -> None:
    assert pieces("a **", end=False) == [("a ", P)]
    assert pieces("a \\", end=False) == [("a ", P)]
    assert pieces("a **", "b**", end=False) == [("a ", P), ("b", B)]


def test_code_ends_with_its_line_and_emphasis_with_its_paragraph() -> None:
    found: list[Piece] = []
    inline = Inline(lambda text, style: found.append((text, style)))
    inline.push("**a `b")
    inline.end_line()
    inline.push("c")
    inline.end_line()
    inline.reset()
    inline.push("d")
    inline.end_line()
    assert found == [("a ", B), ("b", B | C), ("c", B), ("d", P)]


def test_a_style_of_the_whole_line_adds_to_every_piece() -> None:
    found: list[Piece] = []
    inline = Inline(lambda text, style: found.append((text, style)))
    inline.base = Style.HEADING
    inline.push("a *b*")
    inline.end_line()
    assert found == [("a ", Style.HEADING), ("b", Style.HEADING | S)]
