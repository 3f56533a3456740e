"""What compute-sanitizer is asked to run exists and is what it should be; no GPU is needed for that."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.gpu import sanitize

QUIET = 'echo "tests/gpu/test_x.py::test_one PASSED"'


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compute-sanitizer that does what is written into it."""
    path = tmp_path / "compute-sanitizer"
    path.write_text("")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return path


def does(tool: Path, script: str) -> None:
    tool.write_text(f"#!/bin/sh\n{script}\n")


def test_the_tests_of_kernels_are_run_and_long_ones_are_not() -> None:
    engines = {f"test_{name}" for name in sanitize.ENGINES}
    for tool in sanitize.TOOLS:
        names = {Path(file).stem for file in sanitize.files(tool)}
        assert {"test_attention", "test_linear_small", "test_sample"} <= names
        assert names.isdisjoint({f"test_{name}" for name in sanitize.APART})
        assert names & engines == (set() if tool == "racecheck" else engines)
    for name in (*sanitize.APART, *sanitize.ENGINES):
        assert (Path(sanitize.__file__).parent / f"test_{name}.py").exists()


def test_each_file_runs_once_under_each_tool(tool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    does(tool, QUIET)
    assert sanitize.main(["memcheck", "--only", "sample,attention"]) == 0
    assert sanitize.main(["--only", "sample"]) == 0
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()] == [
        "memcheck test_attention: clean", "memcheck test_sample: clean",
        "memcheck test_sample: clean", "racecheck test_sample: clean",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "script",
    [
        f"{QUIET}; exit {sanitize.REPORTED}",
        f"{QUIET}; exit 1",
        f"{QUIET}; echo '.========= Warning: Race reported'",
        f"{QUIET}; echo '========= Error: Race reported'",
        "exit 0",
    ],
)
def test_a_report_a_failure_and_a_file_without_tests_are_failures(
    tool: Path, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    does(tool, script)
    assert sanitize.main(["racecheck", "--only", "sample"]) == 1
    assert "racecheck test_sample: NOT CLEAN" in capsys.readouterr().out


def test_a_file_whose_time_is_up_tells_what_it_has_checked(
    tool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    does(tool, f"{QUIET}; sleep 60")
    assert sanitize.main(["racecheck", "--only", "sample", "--seconds", "3"]) == 0
    assert capsys.readouterr().out == "racecheck test_sample: clean, 1 passed, 0 reports, so far\n"


def test_what_was_reported_before_the_time_was_up_counts() -> None:
    early = sanitize.Verdict("racecheck", "test_sample.py", None, "a PASSED\n========= Error: Race reported")
    assert not early.clean and "1 passed, 1 reports, so far" in str(early)


def test_a_name_that_no_file_has_is_not_clean(tool: Path) -> None:
    does(tool, QUIET)
    assert sanitize.main(["--only", "nothing"]) == 1


def test_without_the_tool_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.gpu.sanitize.shutil.which", lambda name: None)
    assert sanitize.main([]) == 2
    assert "CUDA toolkit" in capsys.readouterr().err
