"""Every k-th write, sync and rename fails once, or is the last thing that a process does: what follows is a
clean end, a resume, and the output of an undisturbed run, with no finished row computed twice."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmrs_cli.batch.job import Job
from llmrs_cli.batch.journal import Journal
from llmrs_cli.batch.records import Ask, Row, Shape
from llmrs_cli.batch.results import Writer
from llmrs_cli.batch.run import Run
from llmrs_cli.cli.batch_options import BatchOptions
from llmrs_cli.cli.batch_outlet import open_outlet
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.engine import FinishReason, Request, TokenEvent
from llmrs_cli.text.generate import GenerateOptions, TextEngine
from llmrs_cli.text.options import SamplingDefaults
from llmrs_cli.text.template import ChatTemplate
from tests.cli.conftest import MakeLadder
from tests.cli.conftest import Run as CommandLine
from tests.helpers.descriptors import as_a_process
from tests.helpers.fake_engine import FakeEngine

ROWS = 5
SETTINGS = {"model": "m"}


class Crash(BaseException):
    """The process is no more."""


class Faulty:
    """`os` for `batch.durable`, counting the calls that can fail; the k-th one does."""

    def __init__(self, fail_at: int, *, crash: bool, fault: int = errno.ENOSPC) -> None:
        self.calls = 0
        self._fail_at, self._crash, self._fault = fail_at, crash, fault

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    @property
    def fired(self) -> bool:
        return self.calls >= self._fail_at

    def _call(self, *torn: Any) -> None:
        self.calls += 1
        if self._crash and self.calls > self._fail_at:
            raise Crash
        if self.calls == self._fail_at:
            if torn:
                os.write(torn[0], bytes(torn[1])[: len(torn[1]) // 2])
            if self._crash:
                raise Crash
            raise OSError(self._fault, os.strerror(self._fault))

    def write(self, file: int, data: Any) -> int:
        self._call(file, data)
        return os.write(file, data)

    def fsync(self, file: int) -> None:
        self._call()
        os.fsync(file)

    def replace(self, source: Path, target: Path) -> None:
        self._call()
        source.replace(target)

    def unlink(self, path: Path) -> None:
        self._call()
        path.unlink()


class Bench:
    """Runs one job again and again until it is done."""

    def __init__(self, folder: Path, errors: bool, order: str) -> None:
        self.out = folder / "out"
        self._errors = str(folder / "bad") if errors else None
        self._order = order
        self.asked: list[int] = []

    def options(self, resume: bool) -> BatchOptions:
        return BatchOptions(
            source="in", named_source=None, output=str(self.out), errors=self._errors, order=self._order,
            format="auto", output_format="auto", prompt_template=None, id_field=None, resume=resume,
            retry_failed=False, overwrite=False, force=False, shard=(1, 1), limit=None, max_errors=None,
            dry_run=False,
        )  # fmt: skip

    def rows(self) -> Iterator[tuple[int, Row]]:
        for number in range(ROWS):
            row = Row(number, number + 1, Shape.FLAT, {}, {}, Ask(token_ids=(number,)), 1, f"{number:016x}")
            yield number, row

    def run(self, *, resume: bool) -> None:
        def answer(request: Request) -> Iterator[TokenEvent]:
            (number,) = request.prompt_ids
            self.asked.append(number)
            failed = number == 2
            yield TokenEvent(
                request.id,
                () if failed else (number, 7),
                finish=FinishReason.ERROR if failed else FinishReason.LENGTH,
                error="Odd." if failed else None,
            )

        engine = TextEngine(
            FakeEngine(answer), tokenizer=None, template=ChatTemplate({}), defaults=SamplingDefaults()
        )
        with open_outlet(self.options(resume), 3, Terminal(None, None)) as outlet:
            finished = False
            if outlet.take_up(SETTINGS, self.rows):
                return
            job = Job(GenerateOptions(max_tokens=2), outlet.seed, Writer("m", 0, token_ids=True))
            run = Run(engine, job, outlet.open("cpu"), in_flight=2)
            try:
                run.run(outlet.watch(self.rows()))
                finished = True
            finally:
                outlet.end(run.counts, 1.0, finished=finished)

    def done(self) -> set[int]:
        """Rows whose record is whole on disk."""
        journal = self.out.with_name("out.journal")
        with as_a_process():
            return set(Journal(journal).numbers()) if journal.exists() else set()

    def results(self) -> dict[str, list[str]]:
        folder = self.out.parent
        lines = {
            path.name: path.read_text().splitlines()
            for path in folder.iterdir()
            if "manifest" not in path.name
        }
        return lines if self._order == "input" else {name: sorted(found) for name, found in lines.items()}


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize(("errors", "order"), [(False, "input"), (True, "input"), (False, "done")])
def test_a_run_survives_a_fault_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash: bool, errors: bool, order: str
) -> None:
    (tmp_path / "clean").mkdir()
    clean = Bench(tmp_path / "clean", errors, order)
    clean.run(resume=False)
    expected = clean.results()
    assert set(expected) == ({"out", "bad"} if errors else {"out"})
    for k in range(1, 200):
        folder = tmp_path / f"{k}"
        folder.mkdir()
        bench = Bench(folder, errors, order)
        faulty = Faulty(k, crash=crash)
        with as_a_process(), monkeypatch.context() as patch:
            patch.setattr("llmrs_cli.batch.durable.os", faulty)
            try:
                bench.run(resume=False)
            except (OSError, Crash):
                assert faulty.fired
        done, asked = bench.done(), len(bench.asked)
        bench.run(resume=True)
        assert bench.results() == expected, f"after a fault at call {k}"
        assert not done & set(bench.asked[asked:]), "finished rows are not computed again"
        if not faulty.fired:
            assert k > 3 * ROWS
            return
    raise AssertionError("the run has no end")


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_fails_is_one_sentence_and_the_run_goes_on_later(
    llmrs: CommandLine, ladder: MakeLadder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int
) -> None:
    """Through the command line; the journal is opened, and some rows are in it."""
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(f'{{"id":{n},"prompt":"Hi","seed":{n}}}\n' for n in range(8)))
    command = ("batch", str(source), "-o", str(out), "-m", ladder(), "-t", "1")
    with monkeypatch.context() as patch:
        patch.setattr("llmrs_cli.batch.durable.os", Faulty(16, crash=False, fault=fault))
        result = llmrs(*command)
    assert (result.exit_code, result.stdout) == (1, "")
    said = result.stderr
    assert ("No space is left" in said) is (fault != errno.EIO)
    assert "Go on with: llmrs" in said and "Traceback" not in said
    kept = out.read_bytes()
    assert 0 < kept.count(b"\n") < 8
    again = llmrs(*command, "--resume")
    assert (again.exit_code, "from before" in again.stderr) == (0, True)
    assert out.read_bytes().startswith(kept[: kept.rindex(b"\n") + 1])
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == list(range(8))
