"""`llmrs bench --scenario` and `llmrs bench kernels`: what they print, as text and as JSON, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmrs_cli.bench import kernels
from llmrs_cli.bench.ceilings import HostCeilings
from llmrs_cli.bench.scenarios import SCENARIOS
from llmrs_cli.bench.startup import startup
from llmrs_cli.cli.bench import random_model
from llmrs_cli.cli.bench_names import LOADS, NAMES
from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.errors import EngineFault
from tests.cli.conftest import Run
from tests.helpers.tiny_model import TinyModel, tiny_config, write_tiny

QUICK = ("--scale", "0.005", "--repeats", "1")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny(tmp_path_factory.mktemp("tiny"), TinyModel()))


@pytest.fixture
def configured(tmp_path: Path) -> str:
    """A folder with config.json alone."""
    (tmp_path / "config.json").write_text(json.dumps(tiny_config(TinyModel())))
    return str(tmp_path)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers and short rounds: the figures mean nothing here."""
    monkeypatch.setattr("llmrs_cli.bench.kernels.MOST_LAYERS", 2)
    monkeypatch.setattr("llmrs_cli.bench.ceilings.HOST_PRODUCT", 64)
    monkeypatch.setattr("llmrs_cli.bench.ceilings.HOST_BYTES", 1 << 16)
    monkeypatch.setattr("llmrs_cli.bench.clock.HostClock.__init__", _hurry)


def _hurry(clock: object) -> None:
    vars(clock).update(_rounds=1, _least=0.0)


def test_every_load_has_a_name() -> None:
    assert tuple(SCENARIOS) == LOADS
    assert set(NAMES) > set(LOADS)


def test_scenarios_are_figures_by_name(llmrs: Run, tiny: str) -> None:
    result = llmrs("bench", tiny, "-s", "single", "-s", "profile", *QUICK, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["device"], report["random_weights"], report["scale"]) == ("reference", False, 0.005)
    assert list(report["scenarios"]) == ["single", "profile"]
    assert report["scenarios"]["single"]["token_ms"] > 0
    parts = report["scenarios"]["profile"]["rows_1"]["parts"]
    assert sum(part["calls"] for part in parts) == 13


def test_scenarios_speak_to_people(llmrs: Run, configured: str) -> None:
    result = llmrs("bench", configured, "--random-weights", "-s", "prefix", "-s", "profile", *QUICK)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "(random weights)" in lines[0]
    assert "prefix" in lines
    assert any(line.startswith("  shared_tokens ") and line.endswith("32") for line in lines)
    assert any(line.split()[:2] == ["norm_gate_up", "2"] for line in lines)


def test_the_cost_of_fixed_bits_is_a_ratio(
    llmrs: Run, configured: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def open_backend(device: str, *, deterministic: bool = False) -> ReferenceBackend:
        asked.append(deterministic)
        return ReferenceBackend()

    monkeypatch.setattr("llmrs_cli.engine.backends.registry.open_backend", open_backend)
    result = llmrs("bench", configured, "--random-weights", "-s", "deterministic", *QUICK, "--json")
    assert result.exit_code == 0, result.stderr
    assert asked == [False, True]
    found = json.loads(result.stdout)["scenarios"]["deterministic"]
    usual, fixed = found["usual"]["token_ms"], found["fixed"]["token_ms"]
    assert found["times_as_much"]["token_ms"] == pytest.approx(fixed / usual)


def test_fixed_bits_are_a_gpus(llmrs: Run, configured: str) -> None:
    result = llmrs("bench", configured, "--random-weights", "-s", "single", *QUICK, "--deterministic")
    assert result.exit_code == 2
    assert "cannot be deterministic" in result.stderr


def test_memory_that_was_asked_for_holds(llmrs: Run, tiny: str) -> None:
    result = llmrs("bench", tiny, "-s", "single", *QUICK, "--gpu-memory", "1MiB")
    assert result.exit_code == 6
    assert "available 1 MiB" in result.stderr


def test_an_unknown_scenario_names_those_there_are(llmrs: Run) -> None:
    result = llmrs("bench", "any", "-s", "fast")
    assert result.exit_code == 2
    assert "throughput" in result.stderr


@pytest.mark.usefixtures("hasty")
def test_kernels_are_timed_and_drawn(llmrs: Run, configured: str, tmp_path: Path) -> None:
    chart = tmp_path / "share.png"
    arguments = ("bench", "kernels", configured, "--device", "reference", "--sizes", "2,1", "--no-attention")
    result = llmrs(*arguments, "--plot", str(chart), "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    timings = report["models"][configured]
    assert [(t["op"], t["tokens"]) for t in timings[:6]] == [
        ("qkv", 1), ("o", 1), ("gate_up", 1), ("down", 1), ("head", 1), ("qkv", 2)
    ]  # fmt: skip
    assert all(t["us"] > 0 and t["share"] > 0 for t in timings)
    assert report["read_gb_per_s"] > 0
    assert chart.read_bytes().startswith(b"\x89PNG")
    lines = llmrs(*arguments).stdout.splitlines()
    assert lines[2] == configured
    assert len(lines) == 4 + len(timings)


@pytest.mark.usefixtures("hasty")
def test_the_machine_is_at_its_limit_only_before_a_model_is_there(
    llmrs: Run, configured: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def noted(name: str, call: Any) -> Any:
        def run(*args: Any) -> Any:
            done.append(name)
            return call(*args)

        return run

    monkeypatch.setattr(HostCeilings, "operations", noted("products", HostCeilings.operations))
    monkeypatch.setattr(kernels, "lay", noted("model", kernels.lay))
    arguments = ("bench", "kernels", configured, "--device", "reference", "--sizes", "1", "--no-attention")
    assert llmrs(*arguments).exit_code == 0
    assert done[:2] == ["products", "model"]


@pytest.mark.parametrize("sizes", ["0", "1,x", "9000"])
def test_odd_sizes_are_refused(llmrs: Run, sizes: str) -> None:
    result = llmrs("bench", "kernels", "any", "--sizes", sizes)
    assert result.exit_code == 2
    assert "--sizes" in result.stderr


def test_a_model_may_have_other_layers_than_its_configuration(configured: str) -> None:
    assert random_model(configured, lambda spec: spec.layers + 3).spec.layers == 5
    assert random_model(configured).spec.layers == 2
    quantised = random_model("qwen2.5-0.5b-awq", lambda _: 1)
    assert quantised.spec.layers == 1
    assert any(parameter.is_quantised for parameter in quantised.parameters.values())


# -- startup ------------------------------------------------------------------------------------------


def test_a_start_is_timed_in_a_process_of_its_own(configured: str) -> None:
    said: list[str] = []
    checkpoint = random_model(configured)
    found = startup(checkpoint, "reference", 1, random_weights=True, say=said.append)
    assert said[0] == "Writing random weights"
    for run in (found["cold"], found["warm"]):
        marks = [
            run[name]
            for name in ("imported_s", "first_weight_s", "last_weight_s", "ready_s", "first_token_s")
        ]
        assert marks == sorted(marks)
        assert run["process_s"] > marks[-1]
    assert found["warm"]["weight_bytes"] == sum(p.nbytes for p in checkpoint.parameters.values())


def test_a_start_that_fails_says_why(tiny: str) -> None:
    with pytest.raises(EngineFault, match="failed: .*nothing"):
        startup(open_checkpoint(Path(tiny)), "nothing", 1, random_weights=False)
