"""What compute-sanitizer is asked to run exists and is what it should be; no GPU is needed for that."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import sanitize


def test_the_tests_of_kernels_are_run_and_long_ones_are_not() -> None:
    names = {Path(file).stem for file in sanitize.files()}
    assert {"test_attention", "test_linear_small", "test_sample", "test_cuda_engine"} <= names
    assert names.isdisjoint({f"test_{name}" for name in sanitize.APART})
    assert all((Path(sanitize.__file__).parent / f"test_{name}.py").exists() for name in sanitize.APART)


def test_each_tool_runs_once_and_a_report_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command[command.index("--tool") + 1])
        return subprocess.CompletedProcess(command, sanitize.REPORTED if asked[-1] == "racecheck" else 0)

    monkeypatch.setattr("tests.gpu.sanitize.subprocess.run", run)
    monkeypatch.setattr("tests.gpu.sanitize.shutil.which", lambda name: f"/bin/{name}")
    assert sanitize.main(["memcheck"]) == 0
    assert sanitize.main([]) == 1
    assert asked == ["memcheck", "memcheck", "racecheck"]


def test_without_the_tool_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.gpu.sanitize.shutil.which", lambda name: None)
    assert sanitize.main([]) == 2
    assert "CUDA toolkit" in capsys.readouterr().err
