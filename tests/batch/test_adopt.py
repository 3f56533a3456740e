"""Outputs read back without a journal: wherever they were cut, their whole lines are taken, each for its row."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.batch.adopt import adopted
from llmrs_cli.batch.delivery import Record
from llmrs_cli.batch.records import Ask, Row, Shape
from llmrs_cli.batch.results import Answer, Choice, Outcome, Writer
from llmrs_cli.errors import RequestError, UsageError

WRITER = Writer("m", 0)
ANSWER = Answer([Choice("é", (5, 6), "stop")], prompt_tokens=3)
SHAPES = (Shape.FLAT, Shape.CHAT, Shape.COMPLETION)


def rows(count: int = 6) -> list[tuple[int, Row]]:
    """Of every shape, with ids; the numbers of a shard differ from their indices."""
    return [
        (n, Row(2 * n, n + 1, SHAPES[n % 3], {"custom_id": f"r{n}"}, {}, Ask(text="x"), 1, f"{n:016x}"))
        for n in range(count)
    ]


def outcome(number: int) -> Outcome:
    return RequestError("Bad.") if number == 4 else ANSWER


def line(number: int, row: Row) -> bytes:
    return WRITER.line(row, outcome(number)).encode() + b"\n"


def written(path: Path, numbered: Sequence[tuple[int, Row]]) -> Path:
    path.write_bytes(b"".join(line(number, row) for number, row in numbered))
    return path


def test_a_whole_output_is_every_row(tmp_path: Path) -> None:
    records = list(adopted([written(tmp_path / "out", rows())], rows()))
    assert records[1] == Record(1, f"{1:016x}", False, 3, 2, WRITER.line(rows()[1][1], ANSWER))
    assert [record.number for record in records] == list(range(6))
    assert [record.failed for record in records] == [False] * 4 + [True, False]
    assert [record.completion_tokens for record in records] == [2, 2, 2, 2, 0, 2]


@given(st.integers(0, 2000))
def test_an_output_that_was_cut_is_its_whole_lines(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = written(tmp_path_factory.mktemp("cut") / "out", rows())
    data = path.read_bytes()[:cut]
    path.write_bytes(data)
    assert [record.number for record in adopted([path], rows())] == list(range(data.count(b"\n")))


@given(st.lists(st.booleans(), min_size=6, max_size=6))
def test_two_outputs_share_the_rows(tmp_path_factory: pytest.TempPathFactory, apart: list[bool]) -> None:
    folder = tmp_path_factory.mktemp("two")
    good = written(folder / "good", [one for one, bad in zip(rows(), apart, strict=True) if not bad])
    bad = written(folder / "bad", [one for one, bad in zip(rows(), apart, strict=True) if bad])
    assert [record.number for record in adopted([good, bad], rows())] == list(range(6))


def test_a_compressed_output_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    plain = written(tmp_path / "out", rows()).read_bytes()
    packed = tmp_path / "out.gz"
    packed.write_bytes(gzip.compress(plain))
    assert len(list(adopted([packed], rows()))) == 6
    packed.write_bytes(gzip.compress(plain)[:-4])
    assert len(list(adopted([packed], rows()))) <= 6


@pytest.mark.parametrize(
    "foreign", [b"not json\n", b"[]\n", b"{}\n", b'{"index": 99}\n', b'{"index": 2, "custom_id": "other"}\n']
)
def test_a_line_of_another_origin_is_refused(tmp_path: Path, foreign: bytes) -> None:
    path = written(tmp_path / "out", rows()[:1])
    path.write_bytes(path.read_bytes() + foreign)
    with pytest.raises(UsageError, match="does not answer this input"):
        list(adopted([path], rows()))


def test_more_lines_than_rows_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "out", rows())
    with pytest.raises(UsageError):
        list(adopted([path], rows()[:3]))
