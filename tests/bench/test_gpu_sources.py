"""The hash of what a GPU runs: it moves with kernels and their launchers, and with nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import gpu_sources


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "kernels/norm.cu",
        "kernels/norm.py",
        "kernels/simd/norm.py",
        "engine/backends/cuda_rows.py",
        "errors.py",
    ):
        path = tmp_path / "llmrs_cli" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "moves"),
    [
        ("kernels/norm.cu", True),
        ("kernels/norm.py", True),
        ("kernels/new.cuh", True),
        ("engine/backends/cuda_rows.py", True),
        ("kernels/simd/norm.py", False),
        ("errors.py", False),
    ],
)
def test_only_what_a_gpu_runs_moves_the_hash(tree: Path, name: str, moves: bool) -> None:
    before = gpu_sources.digest(tree)
    (tree / "llmrs_cli" / name).write_text("changed")
    assert (gpu_sources.digest(tree) != before) == moves


def test_what_is_kept_is_a_hash_of_all_our_kernels() -> None:
    assert re.fullmatch("[0-9a-f]{16}\n", gpu_sources.KEPT.read_text())
    assert all(any(gpu_sources.ROOT.glob(pattern)) for pattern in gpu_sources.PATTERNS)
