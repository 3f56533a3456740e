"""Memory of `llmrs batch` over a long input: one process, every row computed, a sample of memory each 0.2 s.

    python -m benchmarks.batch_memory [--rows 100000] [--out benchmarks/batch-memory.json]

The model is scripted and tiny, so that what is seen is the batch: reading, ids, journal, output. Flat means
that the second half of the input adds no more than the ids of its rows, which are kept as hashes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.helpers.ladder import Ladder, write_ladder


def write_rows(path: Path, count: int) -> None:
    """Rows with an id, a note to be copied, and a draw of their own."""
    with path.open("w") as file:
        for n in range(count):
            row = {"id": f"row-{n}", "prompt_token_ids": [5], "max_tokens": 2, "note": "x" * 300}
            file.write(json.dumps(row) + "\n")


def own_memory(pid: int) -> int:
    """KiB that are the process's own; 0 when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")), 0)


def measure(folder: Path, count: int) -> dict[str, Any]:
    """Run once; figures."""
    source, out = folder / "in.jsonl", folder / "out.jsonl"
    model = write_ladder(folder / "model", Ladder(vocab=384))
    write_rows(source, count)
    line = source.stat().st_size // count
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "llmrs_cli", "batch", str(source), "-o", str(out), "-m", str(model)]
        + ["-t", "1", "-q", "--device", "cpu"]
    )
    samples: list[tuple[int, int]] = []
    while process.poll() is None:
        time.sleep(0.2)
        done = out.stat().st_size // line if out.exists() else 0
        samples.append((done, own_memory(process.pid)))
    seconds = time.monotonic() - began
    assert process.returncode == 0
    whole = max(done for done, _ in samples)

    def most(low: float, high: float) -> int:
        return max(size for done, size in samples if low * whole <= done <= high * whole)

    first, last = most(0.25, 0.5), most(0.75, 1.0)
    return {
        "rows": count,
        "input MiB": round(source.stat().st_size / 2**20, 1),
        "output MiB": round(out.stat().st_size / 2**20, 1),
        "seconds": round(seconds, 1),
        "rows a second": round(count / seconds),
        "own memory MiB": {
            "most in the second quarter": round(first / 1024, 1),
            "most in the last quarter": round(last / 1024, 1),
        },
        "bytes a row that stay": round((last - first) * 1024 / (0.5 * count)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = {
            "date": datetime.date.today().isoformat(),
            "command": "python -m benchmarks.batch_memory",
            "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
            **measure(Path(folder), asked.rows),
        }
    text = json.dumps(report, indent=1)
    print(text)
    if asked.out is not None:
        asked.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
