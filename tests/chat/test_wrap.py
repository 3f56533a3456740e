"""Words in lines of a terminal: nothing lost, nothing too wide, and colours that are always switched off again."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from llmrs_cli.chat.inline import Style
from llmrs_cli.chat.wrap import LEAST, RESET, Wrapped, sgr

SEQUENCE = re.compile(r"\x1b\[[0-9;]*m")
STYLES = st.sampled_from([Style.PLAIN, Style.BOLD, Style.ITALIC | Style.BOLD, Style.CODE, Style.FAINT])
TEXTS = st.text(st.sampled_from(list("ab c\t中é")), max_size=12)
PIECES = st.lists(st.tuples(TEXTS, STYLES), max_size=10)


def written(pieces: list[tuple[str, Style]], columns: int = 20, indent: int = 0) -> str:
    lines = Wrapped(lambda: columns)
    lines.indent = indent
    for text, style in pieces:
        lines.put(text, style)
    lines.flush()
    return lines.take()


def plain(text: str, columns: int = 20, indent: int = 0) -> list[str]:
    return SEQUENCE.sub("", written([(text, Style.PLAIN)], columns, indent)).split("\n")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", [""]),
        ("one two", ["one two"]),
        ("one two three four five", ["one two three four", "five"]),
        ("  indented", ["  indented"]),
        ("a\tb", ["a    b"]),
        ("abcdefghijklmnopqrstuvwxyz", ["abcdefghijklmnopqrs", "tuvwxyz"]),
        ("a abcdefghijklmnopqrstuvwxyz", ["a", "abcdefghijklmnopqrs", "tuvwxyz"]),
        ("中" * 12, ["中" * 9, "中" * 3]),
        ("trailing ", ["trailing"]),
    ],
)
def test_lines_are_broken_between_words(text: str, lines: list[str]) -> None:
    assert plain(text) == lines


def test_further_lines_hang() -> None:
    assert plain("one two three four five six", 20, indent=3) == ["one two three four", "   five six"]


def test_a_narrow_terminal_gets_lines_of_ten() -> None:
    assert plain("abc def ghi", columns=1) == ["abc def", "ghi"]
    assert all(cell_len(line) <= LEAST for line in plain("a" * 35, columns=1))


@given(PIECES, st.integers(0, 40), st.integers(0, 5))
def test_no_line_is_wider_than_the_terminal(
    pieces: list[tuple[str, Style]], columns: int, indent: int
) -> None:
    first, *others = SEQUENCE.sub("", written(pieces, columns, indent)).split("\n")
    width = max(columns - 1, LEAST)
    assert cell_len(first.lstrip()) <= width, "blanks in front of the first word are left as they are"
    assert all(cell_len(line) <= width for line in others)
    assert all(line.startswith(" " * indent) for line in others)


@given(PIECES, st.integers(0, 40))
def test_every_character_but_blanks_comes_out_in_order(pieces: list[tuple[str, Style]], columns: int) -> None:
    shown = SEQUENCE.sub("", written(pieces, columns))
    assert "".join(shown.split()) == "".join("".join(text for text, _ in pieces).split())


@given(PIECES, st.integers(11, 40))
def test_words_of_a_wide_terminal_stay_whole(pieces: list[tuple[str, Style]], columns: int) -> None:
    text = "".join(text for text, _ in pieces)
    if "中" in text or any(len(word) > 9 for word in text.split()):
        return
    assert SEQUENCE.sub("", written(pieces, columns)).split() == text.split()


@given(TEXTS, st.integers(11, 40), st.lists(st.integers(0, 12), max_size=4), STYLES)
def test_a_text_is_the_same_however_it_is_cut(text: str, columns: int, cuts: list[int], style: Style) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [(text[a:b], style) for a, b in zip(places, places[1:], strict=False)]
    assert written(parts, columns) == written([(text, style)], columns)


@given(PIECES, st.integers(0, 40))
def test_every_style_that_is_switched_on_is_switched_off(
    pieces: list[tuple[str, Style]], columns: int
) -> None:
    on = ""
    for code in SEQUENCE.findall(written(pieces, columns)):
        assert (code == RESET) is bool(on), "one at a time"
        on = "" if code == RESET else code
    assert on == ""


@given(PIECES)
def test_each_character_has_its_own_style(pieces: list[tuple[str, Style]]) -> None:
    wanted = [(char, sgr(style)) for text, style in pieces for char in text if not char.isspace()]
    found, on = [], ""
    for part in re.split(r"(\x1b\[[0-9;]*m)", written(pieces, 30)):
        if part.startswith("\x1b"):
            on = "" if part == RESET else part
        else:
            found += [(char, on) for char in part if not char.isspace()]
    assert found == wanted


def test_a_style_is_never_left_on_over_a_line_break() -> None:
    shown = written([("bold words that are wrapped here", Style.BOLD)], 16)
    assert all(line.count("\x1b[1m") == line.count(RESET) for line in shown.split("\n"))


def test_words_are_given_out_when_they_end_and_not_before() -> None:
    lines = Wrapped(lambda: 40)
    lines.put("one tw", Style.PLAIN)
    assert lines.take() == "one"
    lines.put("o three", Style.PLAIN)
    assert lines.take() == " two"
    lines.flush()
    assert lines.take() == " three"
    assert lines.take() == ""


def test_a_line_that_ends_begins_anew() -> None:
    lines = Wrapped(lambda: 12)
    lines.put("1234567890", Style.PLAIN)
    lines.end_line()
    lines.put("abc", Style.PLAIN)
    lines.end_line()
    assert lines.take() == "1234567890\nabc\n"


def test_a_literal_stands_where_it_was_put() -> None:
    lines = Wrapped(lambda: 12)
    lines.put("a", Style.PLAIN)
    lines.end_line()
    lines.literal("\x1b[31mas it is, however long\x1b[0m\n")
    lines.put("b", Style.PLAIN)
    lines.flush()
    assert lines.take() == "a\n\x1b[31mas it is, however long\x1b[0m\nb"


@pytest.mark.parametrize(
    ("style", "code"),
    [
        (Style.PLAIN, ""),
        (Style.BOLD, "\x1b[1m"),
        (Style.BOLD | Style.ITALIC, "\x1b[1;3m"),
        (Style.HEADING, "\x1b[1;4m"),
    ],
)
def test_styles_have_sequences(style: Style, code: str) -> None:
    assert sgr(style) == code
