"""kill -9 at random moments: every row once, no line torn, no finished row computed again.

Each process is forked from one that has imported everything and opened nothing, so that many kills fit into
seconds. It runs the real command on a scripted model. Most kills wait until some rows are done, so that the
run neither ends too soon nor stands still, however busy the machine is; the others come at any time.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from llmrs_cli.batch.journal import Journal
from tests.cli.conftest import MakeLadder

ROWS = 1000
KILLS = 50
PATIENCE = 100

FORKS = """
import gc, os, sys
import numpy.ma
import llmrs_cli.cli.batch, llmrs_cli.cli.batch_job, llmrs_cli.cli.batch_plan, llmrs_cli.cli.fetching
import llmrs_cli.engine.backends.reference, llmrs_cli.engine.model.decoder, llmrs_cli.engine.runner
import llmrs_cli.engine.weights.load, llmrs_cli.hub.fit, llmrs_cli.hub.store, llmrs_cli.text.generate
from llmrs_cli.cli.root import main
gc.collect()
gc.freeze()
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        sys.stdin = open(os.devnull)
        sys.argv[1:] = line.rstrip("\\n").split("\\t")
        main()
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


class Starter:
    """Starts commands, one at a time."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, *args: str) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write("\t".join(args) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def wait(self) -> int:
        """How the latest one ended, as `os.waitpid` tells it."""
        return self._answer()

    def _answer(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())


@pytest.fixture
def starter() -> Iterator[Starter]:
    starter = Starter()
    yield starter
    assert starter.process.stdin is not None and starter.process.stdout is not None
    starter.process.stdin.close()
    starter.process.wait(PATIENCE)
    starter.process.stdout.close()


def write_rows(path: Path) -> None:
    """Rows of every size up to 200 kB, with chance in their answers."""
    chance = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        for number in range(ROWS):
            note = "é" * (chance.choice([0, 0, 0, 10, 1000]) if number % 250 else 100_000)
            limit = 4 if number % 20 == 0 else 1
            row = {"id": f"r{number}", "prompt_token_ids": [number % 300], "max_tokens": limit, "note": note}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def done(journal: Path) -> set[int]:
    """What is whole in a journal, which is not touched."""
    if not journal.exists():
        return set()
    copy = journal.with_name("copy")
    copy.write_bytes(journal.read_bytes())
    opened = Journal(copy)
    numbers = set(opened.numbers())
    opened.close()
    return numbers


def wait_for_rows(journal: Path, count: int, seconds: float) -> None:
    """Until the journal has had so many lines, or so long, or until it is gone, as it is when the run is done."""
    deadline, there = time.monotonic() + seconds, False
    while time.monotonic() < deadline:
        try:
            there, lines = True, journal.read_bytes().count(b"\n")
        except FileNotFoundError:
            if there:
                return
            lines = 0
        if lines > count:
            return
        time.sleep(0.002)


@pytest.mark.timeout(600)
def test_random_kills_lose_and_repeat_nothing(starter: Starter, ladder: MakeLadder, tmp_path: Path) -> None:
    source, out, calm = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "calm.jsonl"
    write_rows(source)
    options = ("-m", ladder(), "-t", "1", "--seed", "3", "--return-token-ids", "-q", "--rows", "8")
    starter.start("batch", str(source), "-o", str(calm), *options)
    assert starter.wait() == 0
    expected = calm.read_bytes()
    journal = out.with_name("out.jsonl.journal")
    chance, killed, before = random.Random(2), 0, set[int]()
    while killed < KILLS:
        child = starter.start("batch", str(source), "-o", str(out), *options, "--resume")
        # Some are killed while they start. No kill comes late: machines differ, and it must leave rows to the next.
        early = killed % 4 == 0 or not journal.exists()
        rows, seconds = chance.randint(1, ROWS // KILLS), chance.uniform(0.0, 0.4) if early else PATIENCE
        wait_for_rows(journal, len(before) + rows, seconds)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        if starter.wait() != signal.SIGKILL:
            break  # it was done before
        killed += 1
        if not journal.exists() and before and out.read_bytes() == expected:
            before = set(range(ROWS))
            break  # the kill came after the last row
        now = done(journal)
        assert before <= now, "what was finished stays finished"
        before = now
        whole = out.read_bytes() if out.exists() else b""
        assert expected.startswith(whole), "the output is a beginning of the whole at any time"
    starter.start("batch", str(source), "-o", str(out), *options, "--resume")
    assert starter.wait() == 0
    assert killed > KILLS // 4, "a run that is done early leaves nothing to kill"
    assert out.read_bytes() == expected
    manifest = json.loads(out.with_name("out.jsonl.manifest.json").read_text())
    assert manifest["rows"]["reused"] == len(before) or before == set(range(ROWS))
    assert manifest["rows"]["done"] == ROWS
