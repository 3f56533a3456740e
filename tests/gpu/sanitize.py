"""Runs the kernels' tests under NVIDIA's compute-sanitizer: bad accesses, races, uninitialised reads.

    python -m tests.gpu.sanitize [memcheck] [racecheck] [initcheck] [synccheck] [-k EXPRESSION] [-j 8] [--seconds 300]

Every kernel's test has odd shapes: one token, a block and one more or less, groups and heads of all sizes. Under the
tool a test takes many times as long, so a selection is run: at each kernel one 16-bit type and the small cases. Each file
is a process of its own, several at once, and ends after so many seconds: what it had checked by then is told. The status
is 1 if a tool reports anything or a test fails, 2 if the tool is not installed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
USUAL = ("memcheck", "racecheck")
APART = ("soak", "deterministic", "faults", "cuda_backend", "mixed_steps", "gemm", "bench")
"""Tests of whole engines and of a library: too long under a tool, or not our kernels."""
ENGINES = ("cuda_engine", "late_masks")
"""Engines in small, under which racecheck itself ends."""
SELECTION = "not long and not False and not outliers"
"""Of the tests: bfloat16 only, no contexts of 32k."""
REPORTED = 9
"""Status of the tool if it found something."""
PASSED, FOUND = re.compile(" PASSED"), re.compile(r"^\W*========= (?:Error|Warning|Invalid)", re.MULTILINE)
"""A test that ended well, and what a tool tells of a kernel, in the output of one file."""
LAST = 3000
"""Characters of the output that are shown where something is wrong."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one file under one tool."""

    tool: str
    file: str
    status: int | None
    """Of the process; None if its time was up"""
    output: str

    @property
    def passed(self) -> int:
        """Tests that ended well."""
        return len(PASSED.findall(self.output))

    @property
    def found(self) -> int:
        """Reports of the tool."""
        return len(FOUND.findall(self.output))

    @property
    def clean(self) -> bool:
        """Whether all that ran is right, and something did."""
        return self.status in (0, None) and not self.found and self.passed > 0

    def __str__(self) -> str:
        ended = "all" if self.status == 0 else "so far" if self.status is None else f"status {self.status}"
        word = "clean" if self.clean else "NOT CLEAN"
        return (
            f"{self.tool} {Path(self.file).stem}: {word}, {self.passed} passed, {self.found} reports, {ended}"
        )


def files(tool: str) -> list[str]:
    """The tests of kernels, and of engines in small where the tool can run them."""
    here, apart = Path(__file__).parent, (*APART, *(ENGINES if tool == "racecheck" else ()))
    return sorted(
        str(path) for path in here.glob("test_*.py") if path.stem.removeprefix("test_") not in apart
    )


def command(tool: str, file: str, expression: str, python: str = sys.executable) -> list[str]:
    """What to run for one tool and one file."""
    return [
        "compute-sanitizer",
        "--tool",
        tool,
        "--target-processes",
        "all",
        "--error-exitcode",
        str(REPORTED),
        # Libraries ask the driver for functions that it may not have; that is no fault of a kernel.
        *(["--leak-check", "no", "--report-api-errors", "no"] if tool == "memcheck" else []),
        python,
        "-m",
        "pytest",
        file,
        "-vv",  # one more than the usual options take away: each test by name
        "-k",
        expression,
        "-x",
        "-p",
        "no:cacheprovider",
        "-o",
        "timeout=0",
    ]


def judge(tool: str, file: str, expression: str, seconds: float) -> Verdict:
    """Runs one file under one tool, for so long at most; no process of it is left."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        run = subprocess.Popen(
            command(tool, file, expression), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = run.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
        output.seek(0)
        return Verdict(tool, file, status, output.read())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tools", nargs="*", choices=[*TOOLS, []], default=[])
    parser.add_argument("-k", dest="expression", default=SELECTION)
    parser.add_argument("-j", dest="jobs", type=int, default=max((os.cpu_count() or 1) // 2, 1))
    parser.add_argument("--seconds", type=float, default=600, help="for each file, at most (600)")
    parser.add_argument("--only", default="", help="names of files, with commas: attend_few,sample")
    chosen = parser.parse_args(arguments)
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not installed; it comes with the CUDA toolkit.", file=sys.stderr)
        return 2
    only = {f"test_{name}" for name in chosen.only.split(",") if name}
    wanted = [
        (tool, file)
        for tool in chosen.tools or USUAL
        for file in files(tool)
        if not only or Path(file).stem in only
    ]
    clean = bool(wanted)
    with ThreadPoolExecutor(chosen.jobs) as pool:
        runs = [pool.submit(judge, tool, file, chosen.expression, chosen.seconds) for tool, file in wanted]
        for run in runs:
            verdict = run.result()
            print(verdict, flush=True)
            if not verdict.clean:
                clean = False
                print(verdict.output[-LAST:], flush=True)
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
