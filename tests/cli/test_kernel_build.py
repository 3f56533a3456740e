"""`llmrs doctor --build-kernels` and `--tuning`, with a compiler that only pretends."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmrs_cli.cli import kernel_build
from llmrs_cli.kernels.catalog import all_units
from llmrs_cli.kernels.loader import Cubin, Loader, Unit
from llmrs_cli.kernels.tune import Tuning
from tests.cli.conftest import Run


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Unit, str]]:
    """What the compiler was asked for; the cache lies in the test's folder."""
    asked: list[tuple[Unit, str]] = []

    def compile_unit(unit: Unit, arch: str) -> Cubin:
        asked.append((unit, arch))
        return Cubin(str(unit).encode())

    monkeypatch.setattr("llmrs_cli.kernels.loader.Loader.__init__", _with(compile_unit))
    monkeypatch.setattr(kernel_build, "_has", lambda module: True)
    monkeypatch.setenv("LLMRS_CACHE_DIR", str(tmp_path / "cache"))
    return asked


def _with(compiler: object) -> object:
    def init(loader: Loader, arch: str, cache: object) -> None:
        for name, value in (
            ("arch", arch),
            ("cache", cache),
            ("compiler", compiler),
            ("version", lambda: "13.0"),
        ):
            object.__setattr__(loader, name, value)

    return init


def test_every_kernel_is_built_once(llmrs: Run, compiled: list[tuple[Unit, str]]) -> None:
    units = all_units("sm_89")
    result = llmrs("doctor", "--build-kernels", "--arch", "sm_89")
    assert result.exit_code == 0, result.stderr
    assert {unit for unit, _ in compiled} == set(units)
    assert {arch for _, arch in compiled} == {"sm_89"}
    assert f"sm_89: {len(units)} built, 0 were there" in result.stdout
    again = llmrs("doctor", "--build-kernels", "--arch", "sm_89")
    assert f"sm_89: 0 built, {len(units)} were there" in again.stdout
    assert len(compiled) == len(units)


@pytest.mark.usefixtures("compiled")
def test_without_a_gpu_an_architecture_must_be_named(llmrs: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmrs_cli.engine.backends.registry.GPU_SIGNS", ())
    monkeypatch.setattr("llmrs_cli.engine.backends.registry.probe_cuda.__defaults__", (0, ()))
    result = llmrs("doctor", "--build-kernels")
    assert result.exit_code == 2
    assert "no NVIDIA GPU is visible" in result.stderr
    assert "sm_90a" in result.stderr


def test_without_a_compiler_it_says_what_to_install(llmrs: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_build, "_has", lambda module: False)
    result = llmrs("doctor", "--build-kernels", "--arch", "sm_90a")
    assert result.exit_code == 2
    assert "pip install" in result.stderr


def test_a_module_that_is_not_there_is_not_had() -> None:
    assert kernel_build._has("json")
    assert not kernel_build._has("no_such_package.module")


@pytest.mark.usefixtures("compiled")
def test_a_cache_that_cannot_be_used_is_a_finding(llmrs: Run, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "kernels"
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    result = llmrs("doctor", "--build-kernels", "--arch", "sm_90a")
    assert result.exit_code == 2
    assert "open to other users" in result.stderr


def test_an_architecture_alone_is_a_mistake(llmrs: Run) -> None:
    result = llmrs("doctor", "--arch", "sm_90a")
    assert result.exit_code == 2
    assert "--build-kernels" in result.stderr


def test_choices_are_shown(llmrs: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LLMRS_CACHE_DIR", str(tmp_path))
    assert "Nothing has been measured" in llmrs("doctor", "--tuning").stdout
    Tuning(tmp_path / "tuning", "NVIDIA H200", "driver 1").choose("gemm 1", {"fast": lambda: 2.5})
    lines = llmrs("doctor", "--tuning").stdout.splitlines()
    assert lines[0] == "NVIDIA H200 (driver 1)"
    assert lines[1].split() == ["gemm", "1", "fast", "2.50", "us"]
