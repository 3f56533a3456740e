"""Columns: aligned, one row a line, and clean whatever the cells hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.cli.control import clean
from llmrs_cli.cli.table import cell, table

NASTY = st.text(alphabet=st.characters(codec=None)) | st.sampled_from(
    ["\x1b]0;name\x07", "\x1b[2J", "a\nb", "\u202eabc", "\x9b31m", "\udcff", "日本", "e\u0301"]
)


def test_columns_are_aligned_and_numbers_end_flush() -> None:
    rows = [("NAME", "SIZE", "STATE"), ("a/b", "98 MB", "here"), ("model", "1.5 GB", "")]
    assert list(table(rows, right=frozenset({1}))) == [
        "NAME     SIZE  STATE",
        "a/b     98 MB  here",
        "model  1.5 GB",
    ]


def test_wide_and_combining_characters_take_their_cells() -> None:
    assert list(table([("日本", "x"), ("abcd", "x"), ("e\u0301bcd", "x")])) == [
        "日本  x",
        "abcd  x",
        "e\u0301bcd  x",
    ]


def test_no_rows_are_no_lines() -> None:
    assert list(table([])) == []


@given(st.lists(st.tuples(NASTY, NASTY), min_size=1, max_size=5))
def test_every_row_is_one_clean_line(rows: list[tuple[str, str]]) -> None:
    lines = list(table(rows))
    assert len(lines) == len(rows)
    for line in lines:
        assert line == clean(line)
        assert "\n" not in line and "\t" not in line


@given(NASTY)
def test_cleaning_a_cell_twice_changes_nothing(text: str) -> None:
    assert cell(cell(text)) == cell(text)
