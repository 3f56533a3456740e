"""Batches as processes: interrupts once and twice, terminals that go away, memory that stays flat."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import MakeLadder
from tests.helpers.byte_tokenizer import piece_ids
from tests.helpers.ladder import TOP

ABC, DE = piece_ids()["abc"], piece_ids()["de"]
PATIENCE = 100
SOAK = bool(os.environ.get("SOAK"))


def start(*args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "llmrs_cli", "batch", *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


@pytest.fixture
def job(ladder: MakeLadder, tmp_path: Path) -> tuple[Path, Path, tuple[str, ...]]:
    """Input, output and arguments of a run whose fourth row goes on for very long."""
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [{"id": n, "prompt": "Hi", "max_tokens": 500 if n == 3 else n + 1} for n in range(6)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = ladder("abc", "de", table={DE: {ABC: TOP}})
    return source, out, (str(source), "-o", str(out), "-m", model, "-t", "0", "--rows", "4")


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 143)])
def test_a_signal_ends_a_run_that_can_be_resumed(
    job: tuple[Path, Path, tuple[str, ...]], name: str, status: int
) -> None:
    source, out, args = job
    process = start(*args)
    wait_until(lambda: lines_of(out) >= 3)
    process.send_signal(getattr(signal, name))
    time.sleep(0.2)
    if process.poll() is None and name == "SIGINT":
        process.send_signal(signal.SIGINT)  # the second one leaves at once
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == status, said.decode()
    assert f"Go on with: llmrs batch {source} -o {out}" in said.decode()
    assert "Traceback" not in said.decode()
    kept = out.read_bytes()
    assert kept.endswith(b"\n")
    assert json.loads(out.with_name("out.jsonl.manifest.json").read_text())["status"] == "stopped"
    if name != "SIGINT":
        return  # what is left is the same for all
    again = start(*args, "--resume")
    _, said = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0, said.decode()
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == list(range(6))
    assert out.read_bytes().startswith(kept)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.timeout(3600)
def test_memory_is_flat_however_long_the_input_is(ladder: MakeLadder, tmp_path: Path) -> None:
    """With SOAK=1 each of 100,000 rows is computed; else there are fewer, and most of them equal.
    `benchmarks/batch_memory.py` gives the figures."""
    count = 100_000 if SOAK else 30_000
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    with source.open("w") as file:
        for n in range(count):
            row = {"id": n, "prompt_token_ids": [5], "max_tokens": 1, "note": "x" * 300}
            file.write(json.dumps(row if SOAK else {**row, "seed": n % 50}) + "\n")
    process = start(str(source), "-o", str(out), "-m", ladder(), "-t", "1", "-q")
    sizes: list[tuple[int, int]] = []
    while process.poll() is None:
        time.sleep(0.1)
        sizes.append((out.stat().st_size if out.exists() else 0, resident(process.pid)))
    process.communicate()
    assert (process.returncode, lines_of(out)) == (0, count)
    whole = out.stat().st_size
    early = [size for done, size in sizes if 0.25 * whole < done < 0.5 * whole]
    late = [size for done, size in sizes if done > 0.75 * whole]
    assert late and early
    kept = (max(late) - max(early)) / (0.5 * count)
    assert kept < 0.6, "KiB a row: the hash of its id and noise; the row and its answer take more than 1"


def resident(pid: int) -> int:
    """KiB of memory of its own; 0 when the process is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")), 0)
