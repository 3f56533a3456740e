"""Eight readers of strangers' bytes under a fuzzer that is guided by coverage (atheris, which is libFuzzer).

    pip install atheris
    python -m benchmarks.fuzz [--seconds 60] [--out benchmarks/fuzz.json] [target ...]

Each target of `fuzz_targets` runs in a process of its own, from its seeds. A fault is an exception that is no error of
ours, an input that takes more than ten seconds or more than 2 GiB; its input is kept and named, and the status is 1.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("safetensors", "gguf", "config", "tokenizer", "template", "request", "form", "reply")
FAULTS = Path(tempfile.gettempdir()) / "llmrs-fuzz-faults"
"""Where inputs are kept that found something."""


def fuzz(name: str, seconds: int) -> dict[str, Any]:
    """The figures of one target."""
    FAULTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="llmrs-corpus-") as corpus:
        command = [sys.executable, "-m", "benchmarks.fuzz", "--inside", name, "--corpus", corpus]
        run = subprocess.run(
            [*command, "--seconds", str(seconds)], capture_output=True, text=True, errors="replace"
        )
    figures: dict[str, Any] = {"faults": int(run.returncode != 0), "seconds": seconds}
    if done := re.search(r"#(\d+)\s+DONE\s+cov: (\d+) ft: (\d+) corp: (\d+)", run.stderr):
        figures |= dict(zip(("runs", "edges", "features", "corpus"), map(int, done.groups()), strict=True))
    if run.returncode:
        print(run.stderr[-3000:], file=sys.stderr)
        figures["input"] = "".join(re.findall(r"Test unit written to (\S+)", run.stderr)[-1:])
    return figures


def inside(name: str, corpus: Path, seconds: int) -> None:
    """In the process of one target; does not return."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["llmrs_cli"]):
        target = importlib.import_module("benchmarks.fuzz_targets").targets()[name]
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    limits = (f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048", "-max_len=65536")
    atheris.Setup(["fuzz", str(corpus), f"-artifact_prefix={FAULTS}/{name}-", *limits], target)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--corpus", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("targets", nargs="*", choices=[[], *NAMES])
    given = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print("The fuzzer is not installed: pip install atheris", file=sys.stderr)
        return 2
    if given.inside:
        inside(given.inside, given.corpus, given.seconds)
    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "command": "python -m " + " ".join(["benchmarks.fuzz", *sys.argv[1:]]),
        "targets": {},
    }
    for name in given.targets or NAMES:
        report["targets"][name] = figures = fuzz(name, given.seconds)
        print(name, json.dumps(figures), sep="  ", flush=True)
        if given.out:
            given.out.write_text(json.dumps(report, indent=1) + "\n")
    return int(any(figures["faults"] for figures in report["targets"].values()))


if __name__ == "__main__":
    sys.exit(main())
