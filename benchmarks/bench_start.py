"""How long a user waits: for help, a list, TAB, a model's metadata, the first token warm and cold; and peak memory.

Run from the repository root: python3 -m benchmarks.bench_start [OUT.json]
Needs the built-in model (`python -m tests.fetch`). Medians of `REPEATS`, except the cold start, which is one
run with an empty cache of compiled loops. Bounds are the project's promises; the status is 1 if one is missed.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrs_cli.engine.weights.gguf import read_gguf
from tests.helpers.smollm2 import NAME, smollm2_path

REPEATS = 5
QUESTION = (
    "chat",
    "smollm2-135m",
    "-p",
    "What is the capital of France?",
    "--temperature",
    "0",
    "--no-stdin",
)
TAB = {"_LLMRS_COMPLETE": "bash_complete", "COMP_WORDS": "llmrs chat q", "COMP_CWORD": "2"}
"""What bash sets when TAB is pressed behind "llmrs chat q"."""
BOUNDS = {
    "help_seconds": 0.2,
    "list_seconds": 0.2,
    "completion_seconds": 0.2,
    "metadata_seconds": 0.3,
    "warm_first_token_seconds": 3.0,
    "cold_first_token_seconds": 60.0,
    "peak_megabytes": 500.0,
}


@dataclass(frozen=True)
class Start:
    """Seconds from the start of a process to the first byte of its answer, and what it said before."""

    first_token: float
    answer: str
    stderr: str


def llmrs(*args: str, **variables: str) -> Start:
    """Run the program; its answer is read byte by byte, so that the first one is seen as it comes."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "llmrs_cli", *args],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    assert process.stdout is not None
    first = process.stdout.read(1)
    seconds = time.perf_counter() - began
    out, err = process.communicate()
    if process.returncode:
        raise SystemExit(err.decode())
    return Start(seconds, (first + out).decode(), err.decode())


def median(measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in range(REPEATS))


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def cold(model: Path) -> Start:
    """The first start ever, with the model's file on disk."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "models").mkdir()
        (Path(folder) / "models" / NAME).symlink_to(model)
        return llmrs(*QUESTION, LLMRS_CACHE_DIR=folder)


def measure(model: Path) -> dict[str, Any]:
    first_ever = cold(model)
    found = {
        "help_seconds": median(lambda: llmrs("--help").first_token),
        "list_seconds": median(lambda: llmrs("list").first_token),
        "completion_seconds": median(lambda: llmrs(**TAB).first_token),
        "metadata_seconds": median(lambda: seconds(lambda: read_gguf(model))),
        "warm_first_token_seconds": median(lambda: llmrs(*QUESTION).first_token),
        "cold_first_token_seconds": first_ever.first_token,
        "peak_megabytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6,
        "cold_stderr": first_ever.stderr.splitlines(),
        "answer": first_ever.answer.strip(),
    }
    machine = {"python": platform.python_version(), "cpus": os.cpu_count(), "load": os.getloadavg()[0]}
    return {"machine": machine, "bounds": BOUNDS, **found}


def main() -> int:
    model = smollm2_path()
    if model is None:
        raise SystemExit("The built-in model is not here: run `python -m tests.fetch`.")
    report = measure(model)
    text = json.dumps(report, indent=1)
    print(text)
    for out in sys.argv[1:2]:
        Path(out).write_text(text + "\n")
    return int(any(report[name] > bound for name, bound in BOUNDS.items()))


if __name__ == "__main__":
    sys.exit(main())
