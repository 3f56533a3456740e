"""kill -9 at random moments: every row once, no line torn, no finished row computed again.

Each process is forked from one that has imported everything and opened nothing, so that many kills fit into
seconds. It runs the real command on a scripted model.
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
from pathlib import Path

import pytest

from llmrs_cli.batch.journal import Journal
from tests.cli.conftest import MakeLadder
from tests.helpers.descriptors import as_a_process

ROWS = 1000
KILLS = 50 if os.environ.get("SOAK") else 20
PATIENCE = 100

FORKS = """
import os, sys
import llmrs_cli.cli.batch_job, llmrs_cli.cli.batch_plan, llmrs_cli.text.generate
from llmrs_cli.engine.backends.registry import open_backend
from llmrs_cli.cli.root import main
import llmrs_cli.engine.backends.reference
for line in sys.stdin:
    child = os.fork()
    if child == 0:
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
            note = "é" * (chance.choice([0, 0, 0, 10, 1000]) if number % 100 else 100_000)
            row = {"id": f"r{number}", "prompt_token_ids": [5, number % 300], "note": note, "max_tokens": 4}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def done(journal: Path) -> set[int]:
    """What is whole in a journal, which is not touched."""
    copy = journal.with_name("copy")
    copy.write_bytes(journal.read_bytes())
    with as_a_process():
        return set(Journal(copy).numbers())


@pytest.mark.timeout(600)
def test_random_kills_lose_and_repeat_nothing(starter: Starter, ladder: MakeLadder, tmp_path: Path) -> None:
    source, out, calm = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "calm.jsonl"
    write_rows(source)
    options = ("-m", ladder(), "-t", "1", "--seed", "3", "--return-token-ids", "-q", "--rows", "16")
    began = time.monotonic()
    starter.start("batch", str(source), "-o", str(calm), *options)
    assert starter.wait() == 0
    usual = time.monotonic() - began
    journal = out.with_name("out.jsonl.journal")
    chance, killed, before = random.Random(2), 0, set[int]()
    while killed < KILLS:
        child = starter.start("batch", str(source), "-o", str(out), *options, "--resume")
        time.sleep(chance.uniform(0.2, 0.4 + usual / KILLS))
        os.kill(child, signal.SIGKILL)
        if starter.wait() != signal.SIGKILL:
            break  # it was done before
        killed += 1
        if journal.exists():
            now = done(journal)
            assert before <= now, "what was finished stays finished"
            before = now
            whole = out.read_bytes() if out.exists() else b""
            assert calm.read_bytes().startswith(whole), "the output is a beginning of the whole at any time"
    starter.start("batch", str(source), "-o", str(out), *options, "--resume")
    assert starter.wait() == 0
    assert killed >= KILLS // 2
    assert out.read_bytes() == calm.read_bytes()
    manifest = json.loads(out.with_name("out.jsonl.manifest.json").read_text())
    assert manifest["rows"]["reused"] == len(before) or before == set(range(ROWS))
    assert manifest["rows"]["done"] == ROWS
