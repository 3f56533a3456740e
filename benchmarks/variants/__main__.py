"""Checks and times the kernel variants of SECTIONS on a GPU, and prints one table; about seven minutes on an H200.

Run from the repository root: python3 -m benchmarks.variants OUT [SECTION …], by default all of SECTIONS.
Each section is a process of its own, so that a fault ends one of them only; its records go to OUT/<section>.json as
they come. What failed its check says FAIL, and its times then mean nothing.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

SECTIONS = {
    "check": 100,
    "few": 60,
    "body": 150,
    "parts": 150,
    "attention": 60,
    "sampler": 45,
    "prefill": 75,
    "prompts": 60,
    "wide": 120,
    "many": 90,
    "packed_wide_chains": 90,
    "joules": 40,
}
"""Seconds that each may take at most, in the order of their weight."""


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for section in sys.argv[2:] or SECTIONS:
        began = time.monotonic()
        command = [sys.executable, "-m", f"benchmarks.variants.{section}", str(out / f"{section}.json")]
        try:
            found = subprocess.run(command, timeout=SECTIONS[section], check=False).returncode
        except subprocess.TimeoutExpired:
            found = "ran out of time"
        print(f"== {section}: {found}, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
