"""The journal: what is read back is what was written, and a torn or damaged end costs that end alone."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.batch.delivery import Record
from llmrs_cli.batch.journal import Journal, decode_record, encode_record
from llmrs_cli.errors import UsageError

lines = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=30)
records = st.builds(
    Record,
    number=st.integers(0, 60),
    digest=st.integers(0, 2**64 - 1).map(lambda value: f"{value:016x}"),
    failed=st.booleans(),
    prompt_tokens=st.integers(0, 10**6),
    completion_tokens=st.integers(0, 10**6),
    line=lines,
)


def record(number: int, line: str = "x", *, failed: bool = False) -> Record:
    return Record(number, f"{number:016x}", failed, 3, 4, line)


def filled(path: Path, *items: Record) -> Path:
    journal = Journal.create(path, {"seed": 7})
    for item in items:
        journal.append(item)
    journal.close()
    return path


@given(records)
def test_a_record_survives_its_line(item: Record) -> None:
    assert decode_record(encode_record(item)) == item


@given(records, st.data())
def test_no_part_of_a_line_and_no_changed_line_is_a_record(item: Record, data: st.DataObject) -> None:
    whole = encode_record(item)
    assert decode_record(whole[: data.draw(st.integers(0, len(whole) - 1))]) is None
    place = data.draw(st.integers(0, len(whole) - 2))
    changed = bytes([whole[place] ^ data.draw(st.integers(1, 255))])
    assert decode_record(whole[:place] + changed + whole[place + 1 :]) is None


@given(st.lists(records, max_size=12), st.data())
def test_a_journal_cut_anywhere_keeps_the_records_before(
    tmp_path_factory: pytest.TempPathFactory, items: list[Record], data: st.DataObject
) -> None:
    path = filled(tmp_path_factory.mktemp("cut") / "j", *items)
    whole = path.read_bytes()
    header = whole.index(b"\n") + 1
    cut = data.draw(st.integers(header, len(whole)))
    path.write_bytes(whole[:cut])
    kept = items[: whole[header:cut].count(b"\n")]
    journal = Journal(path)
    assert path.stat().st_size == journal.end, "the torn end is gone"
    latest = {item.number: item for item in kept}
    assert {number: journal.read(number) for number in journal.numbers()} == latest
    assert sorted(r.number for r in journal.records()) == sorted(latest)
    extra = Record(61, "0" * 16, False, 0, 0, "after")
    journal.append(extra)
    journal.close()
    again = Journal(path)
    assert again.read(61) == extra
    again.close()


def test_a_row_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its size: a kill leaves all of it or a torn end, and no other writer comes between."""
    written: list[int] = []

    def write(file: int, data: bytes | memoryview) -> int:
        written.append(len(data))
        return len(data)

    path = filled(tmp_path / "j")
    journal = Journal(path)
    monkeypatch.setattr("llmrs_cli.batch.durable.os.write", write)
    for size in (1, 300_000):
        journal.append(record(size, "é" * size))
    monkeypatch.undo()
    journal.close()
    assert written == [len(encode_record(record(size, "é" * size))) for size in (1, 300_000)]


def test_a_damaged_record_ends_the_journal(tmp_path: Path) -> None:
    path = filled(tmp_path / "j", record(0), record(1), record(2))
    path.write_bytes(path.read_bytes().replace(b" x\n", b" y\n", 2).replace(b" y\n", b" x\n", 1))
    with closing(Journal(path)) as journal:
        assert list(journal.numbers()) == [0]


def test_a_record_can_be_read_while_others_are_added(tmp_path: Path) -> None:
    with closing(Journal.create(tmp_path / "j", {"seed": 7})) as journal:
        for number in range(50):
            journal.append(record(number, f"line {number}"))
            assert journal.read(number // 2).line == f"line {number // 2}"
        assert 49 in journal and 50 not in journal
        assert journal.digest(3) == f"{3:016x}"


def test_records_come_in_the_order_in_which_rows_finished_the_latest_of_each(tmp_path: Path) -> None:
    path = filled(tmp_path / "j", record(2), record(0, "old"), record(1), record(0, "new"))
    with closing(Journal(path)) as journal:
        found = [(r.number, r.line) for r in journal.records()]
    assert found == [(2, "x"), (1, "x"), (0, "new")]


def test_records_may_be_left_out(tmp_path: Path) -> None:
    path = filled(tmp_path / "j", record(0), record(1, failed=True), record(2))
    with closing(Journal(path).keep(lambda item: not item.failed)) as kept:
        assert (list(kept.numbers()), kept.header["seed"]) == ([0, 2], 7)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "content", [b"", b"{}\n", b"[1]\n", b'{"llmrs_journal": 99}\n', b"\x00\xff", b"x" * 2**21]
)
def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "j").write_bytes(content)
    with pytest.raises(UsageError, match="journal"):
        Journal(tmp_path / "j")
    assert (tmp_path / "j").read_bytes() == content
