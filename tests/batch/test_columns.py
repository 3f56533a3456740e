"""Tables and templates: RFC 4180 with awkward cells, TSV without quoting, and what is wrong with a record."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.batch.columns import Table, Template
from llmrs_cli.errors import RequestError, UsageError

cells = st.text(st.sampled_from('ab,"\n é;\t'), max_size=6)


def read(data: bytes | str, *, tabs: bool = False) -> list[Any]:
    """(first line, cells or code of the error) of each record."""
    stream = io.BytesIO(data.encode() if isinstance(data, str) else data)
    records = Table(stream, tabs=tabs).records()
    return [(line.number, r.code if isinstance(r, RequestError) else list(r.values())) for line, r in records]


@given(st.lists(st.lists(cells, min_size=2, max_size=2), max_size=8))
def test_what_csv_writers_write_is_read_back(rows: list[list[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([["x", "y"], *rows])
    assert [found for _, found in read(text.getvalue())] == rows


def test_quoted_cells_hold_lines_and_records_know_where_they_began() -> None:
    assert read('\ufeffa,b\r\n"1\n\n2","x""y"\r\n\r\n3,5" disk\n') == [
        (2, ["1\n\n2", 'x"y']),
        (6, ["3", '5" disk']),
    ]


def test_tsv_has_no_quoting() -> None:
    assert read('a\tb\n"1\t2"\n', tabs=True) == [(2, ['"1', '2"'])]


def test_a_bad_record_stands_alone() -> None:
    found = read(b"a,b\n1\n\xff,2\n1,2,3\n4,5\n")
    assert found == [(2, "invalid_csv"), (3, "invalid_utf8"), (4, "invalid_csv"), (5, ["4", "5"])]


def test_records_are_bounded_as_lines_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmrs_cli.batch.columns.MAX_LINE", 50)
    try:
        found = read('a,b\n1,"' + "x\n" * 30 + "7,8\n")
    finally:
        csv.field_size_limit(131072)
    assert found[0] == (2, "invalid_csv"), "a quote that nobody closes costs at most that much"
    assert found[-1] == (32, ["7", "8"])


@pytest.mark.parametrize("data", [b"", b"\n\n"])
def test_an_empty_table_is_no_rows(data: bytes) -> None:
    table = Table(io.BytesIO(data), tabs=False)
    table.require(["prompt"])
    assert list(table.records()) == []


def test_columns_are_required_by_name_and_have_one_name_each() -> None:
    table = Table(io.BytesIO(b"a,b\n"), tabs=False)
    table.require(["b"])
    with pytest.raises(UsageError, match="'prompt'"):
        table.require(["prompt"])
    with pytest.raises(UsageError, match="'a'"):
        Table(io.BytesIO(b"a,a\n"), tabs=False)
    with pytest.raises(UsageError, match="header"):
        Table(io.BytesIO(b"\xff,a\n"), tabs=False)


def test_a_template_puts_columns_in_their_places() -> None:
    template = Template("{{x}} {a}: {b} {a}")
    assert template.columns == ("a", "b")
    assert template.fill({"a": "1{b}", "b": 2}) == "{x} 1{b}: 2 1{b}"


@pytest.mark.parametrize("text", ["{", "}", "a {b} }", "{}", "{a{b}"])
def test_lone_braces_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="brace"):
        Template(text)


@pytest.mark.parametrize("record", [{}, {"a": None}, {"a": []}, {"a": True}])
def test_a_column_without_text_is_an_error_of_the_row(record: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        Template("{a}").fill(record)
    assert (caught.value.code, caught.value.param) == ("no_column", "a")


@given(st.text(), st.text())
def test_no_cell_can_reach_into_the_template(a: str, b: str) -> None:
    assert Template("<{a}|{b}>").fill({"a": a, "b": b}) == f"<{a}|{b}>"
