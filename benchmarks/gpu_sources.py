"""What a GPU has run: a hash of the sources that decide what it computes, and whether all GPU tests passed on just these.

    python -m benchmarks.gpu_sources          prints both, and whether they agree
    python -m benchmarks.gpu_sources --keep   after `make test-gpu` has passed: this is what it ran

`gpu-sources.sha` holds the hash of the last such run. A commit may differ from it by what no GPU has run yet; figures in
JSON files name the sources or the commit that gave them.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
KEPT = Path(__file__).with_name("gpu-sources.sha")
PATTERNS = (
    "llmrs_cli/kernels/*.cu",
    "llmrs_cli/kernels/*.cuh",
    "llmrs_cli/kernels/*.py",
    "llmrs_cli/engine/backends/cuda*.py",
)


def digest(root: Path = ROOT) -> str:
    """16 hexadecimal digits over names and contents."""
    found = hashlib.sha256()
    for path in sorted(path for pattern in PATTERNS for path in root.glob(pattern)):
        found.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def main() -> int:
    now = digest()
    if "--keep" in sys.argv[1:]:
        KEPT.write_text(f"{now}\n")
    kept = KEPT.read_text().strip()
    print(f"sources {now}, all GPU tests last passed on {kept}: {'the same' if now == kept else 'others'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
