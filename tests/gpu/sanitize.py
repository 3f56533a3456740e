"""Runs the kernels' tests under NVIDIA's compute-sanitizer: bad accesses, races, uninitialised reads.

    python -m tests.gpu.sanitize [memcheck] [racecheck] [initcheck] [synccheck] [-k EXPRESSION]

Every kernel's test has odd shapes: one token, a block and one more or less, groups and heads of all sizes. Under the
tool a test takes many times as long, so a selection is run: at each kernel one 16-bit type and the small cases. The
status is 1 if a tool reports anything, 2 if it is not installed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
USUAL = ("memcheck", "racecheck")
APART = ("soak", "deterministic", "faults", "cuda_backend", "mixed_steps", "gemm", "bench")
"""Tests of whole engines and of a library: too long under a tool, or not our kernels."""
SELECTION = "not long and not False and not outliers"
"""Of the tests: bfloat16 only, no contexts of 32k."""
REPORTED = 9
"""Status of the tool if it found something."""


def files() -> list[str]:
    """The tests of kernels, and one of an engine in small."""
    here = Path(__file__).parent
    return sorted(
        str(path) for path in here.glob("test_*.py") if path.stem.removeprefix("test_") not in APART
    )


def command(tool: str, expression: str, python: str = sys.executable) -> list[str]:
    """What to run for one tool."""
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
        *files(),
        "-k",
        expression,
        "-x",
        "-p",
        "no:cacheprovider",
        "-o",
        "timeout=0",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tools", nargs="*", choices=[*TOOLS, []], default=[])
    parser.add_argument("-k", dest="expression", default=SELECTION)
    chosen = parser.parse_args(arguments)
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not installed; it comes with the CUDA toolkit.", file=sys.stderr)
        return 2
    found = False
    for tool in chosen.tools or USUAL:
        status = subprocess.run(command(tool, chosen.expression), check=False).returncode
        print(f"{tool}: {'clean' if status == 0 else f'status {status}'}", flush=True)
        found |= status != 0
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
