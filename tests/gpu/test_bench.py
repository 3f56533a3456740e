"""The measurements run on the GPU, in small: their figures hang together, whatever they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llmrs_cli.bench import ceilings, first_token, kernels
from llmrs_cli.bench.profile import profile
from llmrs_cli.bench.scenarios import SCENARIOS
from llmrs_cli.bench.workplace import Workplace
from llmrs_cli.engine.model.spec import from_config
from llmrs_cli.engine.weights.random import random_checkpoint
from tests.helpers.tiny_model import TinyModel, tiny_config


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    from llmrs_cli.engine.backends.cuda import CudaBackend

    monkeypatch.setenv("LLMRS_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
    spec = from_config(tiny_config(TinyModel(context=2048)), {})
    backend = CudaBackend(0)
    yield Workplace(random_checkpoint(spec), backend, scale=0.03, repeats=1, memory=2 << 30)
    backend.close()


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_runs(place: Workplace, name: str) -> None:
    assert SCENARIOS[name](place)


def test_a_crowd_says_how_busy_the_device_was(place: Workplace) -> None:
    for load in SCENARIOS["throughput"](place).values():
        assert 0 < load["device_busy"] <= 1.01


@pytest.mark.parametrize("rows", [1, 20])
def test_a_step_falls_into_its_kernels(place: Workplace, rows: int) -> None:
    found = profile(place, rows, 70)
    names = {part["name"].partition(".")[0] for part in found["parts"]}
    assert {"gather", "embed", "sample"} <= names
    assert found["launched_us"] > 0


def test_ops_are_timed_against_the_ceilings(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "POOL_BYTES", 256 << 20)
    monkeypatch.setattr(ceilings, "PRODUCT", 4096)
    bed = kernels.lay(place.checkpoint, place.backend, ceilings.ceilings(place.backend))
    timings = [
        *kernels.time_linears(bed, (1, 8, 64, 300)),
        *kernels.time_attention(bed, ((4, 300),), (200,), 1 << 20),
    ]
    assert all(timing.us > 0 and timing.share > 0 for timing in timings)
    assert {timing.op for timing in timings} == {"qkv", "o", "gate_up", "down", "head", "attend"}


def test_the_bus_carries_gigabytes() -> None:
    assert first_token.bus_rate() > 1e9
