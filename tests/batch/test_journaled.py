"""Delivery into files: whatever the order of finishing, and wherever a run ended, the files come out right."""

from __future__ import annotations

from contextlib import closing, nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.batch.delivery import Record
from llmrs_cli.batch.journal import Journal
from llmrs_cli.batch.journaled import JournaledDelivery
from llmrs_cli.batch.outfile import open_outfile
from llmrs_cli.errors import UsageError
from tests.helpers.descriptors import as_a_process, open_descriptors


def record(number: int) -> Record:
    return Record(number, f"{number:016x}", number % 3 == 2, 1, 1, f"row {number}")


def deliver(folder: Path, *, in_order: bool = True, errors: bool = False) -> JournaledDelivery:
    path = folder / "out.journal"
    journal = Journal(path) if path.exists() else Journal.create(path, {"seed": 1})
    apart = open_outfile(folder / "bad") if errors else None
    return JournaledDelivery(journal, open_outfile(folder / "out"), apart, in_order=in_order)


def numbers(path: Path) -> list[int]:
    return [int(line.split()[1]) for line in path.read_text().splitlines()]


@given(st.permutations(range(8)), st.integers(0, 8), st.booleans(), st.booleans())
def test_every_order_of_finishing_and_every_end_gives_the_same_files(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], ended: int, in_order: bool, errors: bool
) -> None:
    folder = tmp_path_factory.mktemp("run")
    with as_a_process():
        first = deliver(folder, in_order=in_order, errors=errors)
        for number in order[:ended]:
            first.put(record(number))
        prefix = next(n for n in range(9) if n not in order[:ended])
        if in_order and not errors:
            assert numbers(folder / "out") == list(range(prefix)), "it grows as the finished beginning"
            assert first.held == ended - prefix
        first.sync()  # and then the process ends without closing anything
    second = deliver(folder, in_order=in_order, errors=errors)
    assert second.held == 0
    for number in range(8):
        assert second.has(number, f"{number:016x}") is (number in order[:ended])
    for number in order[ended:]:
        second.put(record(number))
    second.close()
    expected = list(range(8)) if in_order else order
    good = [n for n in expected if n % 3 != 2] if errors else expected
    assert numbers(folder / "out") == good
    if errors:
        assert numbers(folder / "bad") == [n for n in expected if n % 3 == 2]


def test_a_row_that_is_done_must_be_the_same_row(tmp_path: Path) -> None:
    first = deliver(tmp_path)
    first.put(record(0))
    first.close()
    with closing(deliver(tmp_path)) as again, pytest.raises(UsageError, match="others now"):
        again.has(0, f"{9:016x}")


def test_a_sync_is_due_at_most_a_second_after_a_row(tmp_path: Path) -> None:
    with closing(deliver(tmp_path)) as delivery:
        assert delivery.until_sync() is None
        delivery.put(record(0))
        due = delivery.until_sync()
        assert due is not None and 0 <= due <= 1
        delivery.sync()
        assert delivery.until_sync() is None


def test_a_busy_run_syncs_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("llmrs_cli.batch.journaled.SYNC_SECONDS", 0.0)
    with closing(deliver(tmp_path)) as delivery:
        monkeypatch.setattr(delivery._journal, "sync", lambda: synced.append(1))
        delivery.put(record(0))
        delivery.put(record(1))
    assert synced == [1, 1]


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_what_cannot_be_ended_keeps_nothing_else_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    """A full disk is met by the first of two files, or by both."""
    before = open_descriptors()
    delivery = deliver(tmp_path, errors=True)
    for number in range(4):
        delivery.put(record(number))
    left = iter([OSError(28, "No space left on device")] * broken)

    def sync(file: int) -> None:
        if (error := next(left, None)) is not None:
            raise error

    monkeypatch.setattr("llmrs_cli.batch.durable.sync", sync)
    with pytest.raises(OSError) if broken else nullcontext():
        delivery.close()
    assert open_descriptors() == before
