"""Code in colour, line by line: no character changes, strings and comments keep theirs over lines, work stays bounded."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrs_cli.chat.code import REACH, CodePainter

SEQUENCE = re.compile(r"\x1b\[[0-9;]*m")
GREEN, PURPLE, FAINT = "\x1b[32m", "\x1b[35m", "\x1b[2m"
LINES = st.lists(
    st.text(st.characters(exclude_characters="\n\r\x1b", exclude_categories=["Cs"]), max_size=20), max_size=6
)


def painted(language: str, *lines: str) -> list[str]:
    painter = CodePainter(language)
    return [painter.line(line) for line in lines]


@settings(max_examples=40)
@given(LINES, st.sampled_from(["python", "c", "html", "json", "bash", "diff", "rust", ""]))
def test_colours_change_no_character(lines: list[str], language: str) -> None:
    assert [SEQUENCE.sub("", line) for line in painted(language, *lines)] == lines


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from(['x = "a"', '"""', "# c", "  return 1", "'", "", "/* a", "*/", "}"]), max_size=9)
)
def test_every_colour_ends_in_its_line(lines: list[str]) -> None:
    for language in ("python", "c"):
        for line in painted(language, *lines):
            codes = SEQUENCE.findall(line)
            assert codes[1::2] == ["\x1b[0m"] * (len(codes) // 2)
            assert len(codes) % 2 == 0


@pytest.mark.parametrize("language", ["", "nothing-known", "py thon"])
def test_an_unknown_language_has_no_colours(language: str) -> None:
    assert painted(language, "def f(): return 'x'") == ["def f(): return 'x'"]


@pytest.mark.parametrize(
    ("language", "line", "colour"),
    [
        ("python", "def f():", PURPLE),
        ("py", 'x = "text"', GREEN),
        ("c", "/* said */", FAINT),
        ("sh", "# said", FAINT),
        ("diff", "-gone", "\x1b[31m"),
        ("json", '{"a": 1}', "\x1b[36m"),
    ],
)
def test_kinds_have_colours(language: str, line: str, colour: str) -> None:
    assert colour in painted(language, line)[0]


def test_a_string_over_several_lines_is_one() -> None:
    lines = painted("python", 's = """one', "def two", '"""', "def three(): pass")
    assert GREEN in lines[1] and PURPLE not in lines[1]
    assert PURPLE in lines[3]


def test_a_comment_over_several_lines_is_one() -> None:
    lines = painted("c", "/* one", "int two;", "*/", "int three;")
    assert lines[1] == f"{FAINT}int two;\x1b[0m"
    assert FAINT not in lines[3]


def test_two_blocks_know_nothing_of_each_other() -> None:
    first, second = CodePainter("python"), CodePainter("python")
    first.line('s = """open')
    assert PURPLE in second.line("def f(): pass")


def test_a_string_that_never_ends_loses_its_colour_and_not_more() -> None:
    lines = painted("python", 's = """', *["def f(): pass"] * (REACH + 20))
    assert GREEN in lines[REACH // 2]
    assert PURPLE in lines[REACH + 10]


def test_a_line_that_is_far_too_long_is_left_as_it_is() -> None:
    line = 'x = "' + "a" * 3000 + '"'
    assert painted("python", line, "def f(): pass")[0] == line


def test_blank_lines_have_no_colour() -> None:
    assert painted("python", '"""', "   ", "")[1:] == ["   ", ""]
