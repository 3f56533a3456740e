"""The files of one run: what each state of the folder permits, and what it leaves as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmrs_cli.batch.delivery import Record
from llmrs_cli.batch.job import Counts
from llmrs_cli.batch.jobfiles import JobFiles, Target
from llmrs_cli.batch.manifest import FINISHED, Manifest
from llmrs_cli.batch.records import Ask, Row, Shape
from llmrs_cli.batch.results import Answer, Choice, Writer
from llmrs_cli.errors import UsageError
from tests.helpers.descriptors import open_descriptors

SETTINGS = {"model": "m", "temperature": 0.0}
ANSWER = Answer([Choice("x", (5,), "stop")], prompt_tokens=1)


def numbered(count: int = 4, changed: int | None = None) -> Iterator[tuple[int, Row]]:
    for n in range(count):
        digest = f"{n + (100 if n == changed else 0):016x}"
        yield n, Row(n, n + 1, Shape.FLAT, {}, {}, Ask(text="x"), 1, digest)


def record(row: Row) -> Record:
    return Record(row.index, row.digest, False, 1, 1, Writer("m", 0).line(row, ANSWER))


class Folder:
    """One output, and runs over it that end where they are told to."""

    def __init__(self, path: Path) -> None:
        self.out, self.journal = path / "out", path / "out.journal"
        self.said: list[str] = []

    def files(self, **options: Any) -> JobFiles:
        return JobFiles(Target(self.out, **options), say=self.said.append)

    def run(
        self,
        done: int = 4,
        settings: dict[str, Any] = SETTINGS,
        rows: Callable[[], Iterator[tuple[int, Row]]] = numbered,
        **options: Any,
    ) -> tuple[bool, int]:
        """Do rows up to `done`; whether everything was done already, and rows that were reused."""
        files = self.files(**options)
        try:
            if files.take_up(settings, 7, rows):
                return True, files.reused.rows
            delivery = files.open()
            for number, row in files.watch(rows()):
                if number < done and not delivery.has(number, row.digest):
                    delivery.put(record(row))
            delivery.close()
            if done >= len(list(rows())):
                computed = Counts(done - files.reused.rows)
                manifest = Manifest(settings, files.seed, (), "cpu", "in")
                manifest.write(
                    files.manifest_path, FINISHED, files.reused, computed, input_digest=files.input_digest
                )
                files.finish()
            return False, files.reused.rows
        finally:
            files.close()

    @property
    def lines(self) -> int:
        return self.out.read_bytes().count(b"\n")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    before = open_descriptors()
    yield Folder(tmp_path)
    assert open_descriptors() == before, "whatever became of it, nothing is left open"


def test_a_run_that_ends_early_is_taken_up_where_it_ended(folder: Folder) -> None:
    assert folder.run(done=2) == (False, 0)
    assert (folder.lines, folder.journal.exists()) == (2, True)
    assert folder.run(resume=True) == (False, 2)
    assert (folder.lines, folder.journal.exists()) == (4, False)
    assert folder.run(resume=True) == (True, 4)


@pytest.mark.parametrize("done", [2, 4])
def test_what_is_there_is_refused_unless_somebody_says_what_to_do(folder: Folder, done: int) -> None:
    folder.run(done=done)
    with pytest.raises(UsageError, match=r"not finished|exists"):
        folder.files()
    assert folder.lines == done
    assert folder.run(overwrite=True) == (False, 0)
    assert folder.lines == 4


@pytest.mark.parametrize("done", [2, 4])
@pytest.mark.parametrize("force", [False, True])
def test_other_settings_are_another_run(folder: Folder, done: int, force: bool) -> None:
    folder.run(done=done)
    other = {**SETTINGS, "temperature": 1.0, "top-p": 0.5}
    if force:
        assert folder.run(settings=other, resume=True, force=True)[1] == done
        return
    with pytest.raises(UsageError, match="another temperature and another top-p"):
        folder.run(settings=other, resume=True)
    assert folder.lines == done


@pytest.mark.parametrize("done", [2, 4])
def test_a_row_that_changed_is_refused_or_done_again(folder: Folder, done: int) -> None:
    folder.run(done=done)
    with pytest.raises(UsageError, match="not what it was"):
        folder.run(rows=lambda: numbered(changed=1), resume=True)
    finished, reused = folder.run(rows=lambda: numbered(changed=1), resume=True, force=True)
    assert (finished, reused) == ((False, 1) if done == 2 else (True, 4))
    assert folder.lines == 4


def test_rows_that_were_added_are_done(folder: Folder) -> None:
    folder.run()
    assert folder.run(done=6, rows=lambda: numbered(6), resume=True) == (False, 4)
    assert folder.lines == 6
    assert "taken as they are" in folder.said[0]


def test_the_seed_of_the_first_run_is_that_of_all(folder: Folder) -> None:
    folder.run(done=2)
    files = folder.files(resume=True)
    assert not files.take_up(SETTINGS, None, numbered)
    assert files.seed == 7
    files.close()


def test_an_input_that_is_read_once_is_not_compared_before(folder: Folder) -> None:
    folder.run(done=2)
    files = folder.files(resume=True)
    assert not files.take_up(SETTINGS, None, None)
    assert files.reused.rows == 2
    delivery = files.open()
    with pytest.raises(UsageError, match="others now"):
        delivery.has(1, f"{99:016x}")
    delivery.close()


@pytest.mark.parametrize("options", [{"in_order": False}, {"has_ids": False}])
def test_lines_that_do_not_say_their_row_need_their_journal(folder: Folder, options: dict[str, Any]) -> None:
    folder.run(done=2, **options)
    folder.journal.unlink()
    with pytest.raises(UsageError, match="has no journal"):
        folder.run(resume=True, **options)
    assert folder.lines == 2


def test_a_foreign_output_is_refused_when_it_would_be_written(folder: Folder) -> None:
    folder.run(done=2)
    folder.out.write_text("somebody's own\n")
    with pytest.raises(UsageError, match="other lines"):
        folder.run(resume=True)
    assert folder.out.read_text() == "somebody's own\n"
