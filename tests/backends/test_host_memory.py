"""Free host memory: the kernel's estimate, and a container's limit where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmrs_cli.engine.backends.host_memory import available_bytes

KIB = 1024


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:       9000 kB\nMemFree:         100 kB\nMemAvailable:   5000 kB\n")
    return path


def group(tmp_path: Path, limit: str) -> Path:
    folder = tmp_path / "cgroup"
    folder.mkdir()
    (folder / "memory.max").write_text(limit + "\n")
    (folder / "memory.current").write_text("3000000\n")
    (folder / "memory.stat").write_text("anon 2000000\ninactive_file 500000\n")
    return folder


def test_the_kernel_s_estimate_counts(meminfo: Path, tmp_path: Path) -> None:
    assert available_bytes(meminfo, tmp_path / "none") == 5000 * KIB


def test_a_container_leaves_less(meminfo: Path, tmp_path: Path) -> None:
    assert available_bytes(meminfo, group(tmp_path, "4000000")) == 4000000 - 3000000 + 500000


def test_a_container_without_a_limit_changes_nothing(meminfo: Path, tmp_path: Path) -> None:
    assert available_bytes(meminfo, group(tmp_path, "max")) == 5000 * KIB


def test_a_container_over_its_limit_leaves_nothing(meminfo: Path, tmp_path: Path) -> None:
    assert available_bytes(meminfo, group(tmp_path, "1000000")) == 0


def test_a_system_without_meminfo_says_what_it_has(tmp_path: Path) -> None:
    assert available_bytes(tmp_path / "none", tmp_path / "none") > 0


def test_this_machine_has_some() -> None:
    assert available_bytes() > 0
