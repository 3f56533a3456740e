"""Reading lines: line feeds alone separate, blank lines count, length is bounded."""

from __future__ import annotations

import io
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.batch.lines import Line, read_lines


def lines(data: bytes, limit: int = 100) -> list[Line]:
    return list(read_lines(io.BytesIO(data), limit))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"a", [(1, b"a")]),
        (b"a\nb\n", [(1, b"a"), (2, b"b")]),
        (b"a\r\n\r\n   \n\nb", [(1, b"a"), (5, b"b")]),
        (b"\xef\xbb\xbfa\nb", [(1, b"a"), (2, b"b")]),
        (b"a\rb\n", [(1, b"a\rb")]),
        (b"p\xe2\x80\xa8q\nr\xc2\x85s\n", [(1, b"p\xe2\x80\xa8q"), (2, b"r\xc2\x85s")]),
        (b"\xef\xbb\xbf\n", []),
    ],
)
def test_lines_and_their_numbers(data: bytes, expected: list[tuple[int, bytes]]) -> None:
    assert [(line.number, line.data) for line in lines(data)] == expected


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_the_limit_is_exact_and_a_longer_line_keeps_its_place(end: bytes) -> None:
    assert lines(b"x" * 100 + end) == [Line(1, b"x" * 100)]
    assert lines(b"x" * 101 + end) == [Line(1, None)]


@pytest.mark.parametrize("length", [101, 102, 103, 1000])
def test_the_line_after_a_long_one_is_whole(length: int) -> None:
    assert lines(b"x" * length + b"\nnext\n") == [Line(1, None), Line(2, b"next")]


@given(st.lists(st.binary(max_size=30).filter(lambda b: b"\n" not in b)))
def test_every_line_that_is_not_blank_comes_out_once(rows: list[bytes]) -> None:
    read = lines(b"\n".join(rows), limit=40)
    assert [line.number for line in read] == [
        i
        for i, row in enumerate(rows, 1)
        if (row.removeprefix(b"\xef\xbb\xbf") if i == 1 else row).strip(b" \t\r")
    ]


def test_a_line_without_an_end_takes_no_more_memory_than_the_limit() -> None:
    class Endless(io.RawIOBase):
        left = 64 * 2**20

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            count = min(len(buffer), self.left)
            buffer[:count] = bytes(count)
            self.left -= count
            return count

    tracemalloc.start()
    try:
        assert list(read_lines(io.BufferedReader(Endless()), 2**20)) == [Line(1, None)]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 6 * 2**20, "the line, its pieces while they are joined, and a piece that is dropped"
