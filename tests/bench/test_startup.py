"""Starts that are timed: a checkpoint that is written and read again, the process, and what is made of its milestones."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmrs_cli.bench import first_token, startup
from llmrs_cli.bench.startup import CACHES, write_checkpoint
from llmrs_cli.engine.model.spec import from_config
from llmrs_cli.engine.weights.checkpoint import Checkpoint, open_checkpoint
from llmrs_cli.engine.weights.packed import Dense, Packed4
from llmrs_cli.engine.weights.random import random_checkpoint
from llmrs_cli.errors import EngineFault, UsageError
from tests.helpers.tiny_model import TinyModel, tiny_config, write_tiny

MILESTONES = "imported_s", "first_weight_s", "last_weight_s", "ready_s", "first_token_s"


def configured(folder: Path, model: TinyModel) -> Checkpoint:
    """Random weights for a folder with config.json alone."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(tiny_config(model)))
    return random_checkpoint(folder)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_what_is_written_is_the_checkpoint(
    tmp_path: Path, family: Any, dtype: type[np.floating[Any]], tied: bool
) -> None:
    checkpoint = configured(tmp_path / "config", TinyModel(family, tied=tied, dtype=dtype))
    folder = tmp_path / "written"
    folder.mkdir()
    write_checkpoint(checkpoint, folder)
    again = open_checkpoint(folder)
    assert again.spec == checkpoint.spec
    assert set(again.parameters) == set(checkpoint.parameters)
    for name, parameter in checkpoint.parameters.items():
        wanted, found = parameter.read(), again.parameters[name].read()
        assert isinstance(wanted, Dense) and isinstance(found, Dense)
        assert found.data.dtype == wanted.data.dtype
        assert np.array_equal(found.data, wanted.data), name


def test_words_of_4_bits_are_written_as_random_as_the_checkpoint_is(tmp_path: Path) -> None:
    checkpoint = configured(tmp_path / "config", TinyModel("qwen2", awq=True))
    write_checkpoint(checkpoint, written := tmp_path / "config")
    again = open_checkpoint(written)
    assert set(again.parameters) == set(checkpoint.parameters)
    for name, parameter in checkpoint.parameters.items():
        wanted, found = parameter.read(), again.parameters[name].read()
        if isinstance(wanted, Dense):
            assert np.array_equal(found.dequantise(), wanted.dequantise()), name
            continue
        assert isinstance(wanted, Packed4) and isinstance(found, Packed4)
        assert np.array_equal(found.scales, wanted.scales) and np.array_equal(found.zeros, wanted.zeros)  # type: ignore[arg-type]
        assert np.array_equal(np.bincount(found.unpack().flat), np.bincount(wanted.unpack().flat))


def test_other_words_of_4_bits_are_refused(tmp_path: Path) -> None:
    checkpoint = configured(tmp_path / "config", TinyModel(awq=True))
    checkpoint.config["quantization_config"]["version"] = "gemv"
    with pytest.raises(UsageError, match="as AWQ only"):
        write_checkpoint(checkpoint, tmp_path)


# -- the process ----------------------------------------------------------------------------------------


def replaced(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let `script` run in place of the process that opens a model."""
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        return popen([sys.executable, "-c", script, *command[3:]], **options)

    monkeypatch.setattr(subprocess, "Popen", start)


def marks(process: float, *, first: float = 1.0, last: float = 3.0, **more: float) -> dict[str, float]:
    return {
        "process_s": process,
        "first_weight_s": first,
        "last_weight_s": last,
        "weight_bytes": 4e9,
        **more,
    }


def timed(monkeypatch: pytest.MonkeyPatch, *runs: dict[str, float]) -> list[str]:
    """Let starts give `runs`; the caches that each was given."""
    left, caches = iter(runs), []

    def start(path: Path, device: str, folder: str) -> dict[str, float]:
        caches.append(folder)
        return next(left)

    monkeypatch.setattr(startup, "_start", start)
    return caches


@pytest.fixture
def tiny(tmp_path: Path) -> Checkpoint:
    return open_checkpoint(write_tiny(tmp_path / "tiny"))


def test_a_start_is_told_its_model_its_device_and_empty_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(
        monkeypatch,
        "import json, os, sys; print(json.dumps({'args': sys.argv[1:],"
        f" 'caches': [os.environ[name] for name in {CACHES!r}]}}))",
    )
    found = startup._start(tmp_path / "m.gguf", "cpu", "/empty")
    assert found["args"] == [str(tmp_path / "m.gguf"), "cpu"]
    assert found["caches"] == ["/empty", "/empty"]
    assert found["process_s"] > 0


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("import sys; sys.exit('The file is gone.')", "The file is gone."),
        ("import sys; print('a', 'b', sep=chr(10), file=sys.stderr); sys.exit(4)", "b"),
        ("import sys; sys.exit(4)", "no word"),
        ("import sys; sys.exit('x' * 5000)", "x" * 300),
    ],
)
def test_a_process_that_fails_has_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    replaced(monkeypatch, script)
    with pytest.raises(EngineFault) as caught:
        startup._start(tmp_path, "cpu", str(tmp_path))
    assert caught.value.message == f"The process that was started to be timed failed: {said}"


def test_the_first_start_is_cold_and_the_median_of_the_others_warm(
    tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches = timed(monkeypatch, marks(30.0), marks(4.0), marks(9.0), marks(5.0))
    found = startup.startup(tiny, "cpu", 3, random_weights=False)
    assert (found["cold_s"], found["warm_s"]) == (30.0, 5.0)
    assert found["cold"]["process_s"] == 30.0
    assert found["warm"]["process_s"] == 4.0, "the quickest one shows its milestones"
    assert len(set(caches)) == 1, "all starts share the caches that the first one fills"
    assert not Path(caches[0]).exists()


def test_the_rate_of_the_weights_is_that_of_the_quickest_start(
    tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, marks(30.0), marks(9.0, last=9.0), marks(4.0, first=1.0, last=3.0))
    found = startup.startup(tiny, "cpu", 2, random_weights=False)
    assert found["weights_gb_per_s"] == pytest.approx(2.0)
    assert "weights_share_of_bus" not in found


def test_on_a_gpu_the_rate_is_a_share_of_the_bus(tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, marks(30.0), marks(4.0, bus_gb_per_s=50.0))
    found = startup.startup(tiny, "cuda:0", 1, random_weights=False)
    assert found["weights_share_of_bus"] == pytest.approx(0.04)


def test_weights_that_came_at_once_divide_by_no_zero(
    tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, marks(30.0), marks(4.0, first=2.0, last=2.0))
    assert startup.startup(tiny, "cpu", 1, random_weights=False)["weights_gb_per_s"] > 0


def test_random_weights_are_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Path] = []

    def start(path: Path, device: str, folder: str) -> dict[str, float]:
        assert (path / "model.safetensors").stat().st_size > 0
        started.append(path)
        return marks(1.0)

    monkeypatch.setattr(startup, "_start", start)
    checkpoint = random_checkpoint(from_config(tiny_config(TinyModel()), {}))
    said: list[str] = []
    startup.startup(checkpoint, "cpu", 2, random_weights=True, say=said.append)
    assert said == ["Writing random weights", "Starting with nothing compiled", "Starting again"]
    assert len(set(started)) == 1
    assert not started[0].exists()


def test_a_model_that_is_there_is_read_and_left_alone(
    tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in tiny.path.iterdir()}
    timed(monkeypatch, marks(1.0), marks(1.0))
    said: list[str] = []
    startup.startup(tiny, "cpu", 1, random_weights=False, say=said.append)
    assert said == ["Starting with nothing compiled", "Starting again"]
    assert {path.name: path.read_bytes() for path in tiny.path.iterdir()} == before


# -- what runs in it ------------------------------------------------------------------------------------


@pytest.fixture
def reported(capsys: pytest.CaptureFixture[str]) -> Callable[[Path], dict[str, float]]:
    def report(path: Path) -> dict[str, float]:
        first_token.main(str(path), "reference")
        (line,) = capsys.readouterr().out.splitlines()
        found: dict[str, float] = json.loads(line)
        return found

    return report


def test_milestones_come_in_their_order(
    tiny: Checkpoint, reported: Callable[[Path], dict[str, float]]
) -> None:
    found = reported(tiny.path)
    assert set(found) == {*MILESTONES, "weight_bytes"}
    assert [found[name] for name in MILESTONES] == sorted(found[name] for name in MILESTONES)
    assert found["weight_bytes"] == sum(parameter.nbytes for parameter in tiny.parameters.values())


def test_a_short_context_takes_a_short_prompt(
    tmp_path: Path, reported: Callable[[Path], dict[str, float]]
) -> None:
    assert reported(write_tiny(tmp_path / "short", TinyModel(context=24)))["first_token_s"] > 0


def test_one_line_goes_to_stdout_and_nothing_else(tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent reads one line and takes its time."""
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    first_token.main(str(tiny.path), "reference")
    assert out.getvalue().count("\n") == 1
    assert err.getvalue() == ""
