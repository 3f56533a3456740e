"""What measures a GPU, on one that only pretends: its time is the number of launches, in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.bench import ceilings as tops
from llmrs_cli.bench import first_token, kernels, scenarios
from llmrs_cli.bench.busy import watch
from llmrs_cli.bench.clock import CHAIN_SECONDS, LAUNCHES, ChainClock, chain_length
from llmrs_cli.bench.profile import profile
from llmrs_cli.bench.workplace import Workplace
from llmrs_cli.engine.model.spec import from_config
from llmrs_cli.engine.weights.packed import bf16_to_f32
from llmrs_cli.engine.weights.random import random_checkpoint
from llmrs_cli.kernels.launch import Kernel, Scalar, Shape
from llmrs_cli.kernels.loader import Unit
from tests.helpers.fake_cuda import Device, Gemm, cuda_backend
from tests.helpers.tiny_model import TinyModel, tiny_config

KERNEL = Kernel(Unit("embed"), "any", (Scalar("n", "i32"),))


@pytest.fixture
def gpu() -> Iterator[Workplace]:
    with cuda_backend() as backend:
        spec = from_config(tiny_config(TinyModel(config={"torch_dtype": "bfloat16"})), {})
        yield Workplace(random_checkpoint(spec), backend, scale=0.01, repeats=1, memory=1 << 30)


@pytest.mark.usefixtures("gpu")
def test_a_call_of_a_chain_takes_as_long_as_its_launches() -> None:
    device = Device()

    def twice() -> None:
        for _ in range(2):
            KERNEL.launch(device, Shape((1, 1, 1), (32, 1, 1)), 1)

    assert ChainClock().seconds([twice, twice]) == pytest.approx(2e-3)
    assert ChainClock().seconds([lambda: None] * 3) == 0


@given(seconds=st.floats(0, 1), calls=st.integers(1, 200))
def test_a_chain_is_long_but_not_so_long_that_power_decides(seconds: float, calls: int) -> None:
    length = chain_length(seconds, calls)
    assert calls <= length <= max(calls, LAUNCHES)
    assert length == calls or length * seconds <= CHAIN_SECONDS
    if length < LAUNCHES:
        assert (length + 1) * seconds > CHAIN_SECONDS, "one more would have been too many"


def test_a_step_falls_into_its_kernels(gpu: Workplace) -> None:
    found = profile(gpu, 2, 9)
    calls = {part["name"].partition(".")[0]: part["calls"] for part in found["parts"]}
    assert calls["gather"] == calls["embed"] == calls["sample"] == 1
    assert calls["attend_few"] == 2
    assert all(part["each_us"] == pytest.approx(1000) for part in found["parts"])
    assert found["launched_us"] == pytest.approx(1000 * sum(part["calls"] for part in found["parts"]))


def test_a_profile_leaves_everything_as_it_was(gpu: Workplace) -> None:
    launch = Device.launch
    profile(gpu, 1, 5)
    assert Device.launch is launch
    assert "run" not in vars(gpu.backend)


def test_work_is_what_lies_between_the_events_of_a_step(gpu: Workplace) -> None:
    with watch(gpu.backend) as device:
        assert device.seconds() is None
        engine = gpu.stepped(1, 64)
        device.start()
        backend: Any = gpu.backend
        assert backend.run("a", lambda: backend.run("b", lambda: 3)) == 3
        assert device.seconds() == 0.0
        engine.close()
    assert "run" not in vars(gpu.backend)


def test_a_load_says_how_busy_the_device_was(gpu: Workplace) -> None:
    figures = scenarios.throughput(gpu)
    assert all("device_busy" in load for load in figures.values())


def test_ops_are_timed_against_the_ceilings_of_the_gpu(
    gpu: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tops, "POOL_BYTES", 1 << 20)
    monkeypatch.setattr(tops, "PRODUCT", 64)
    monkeypatch.setattr("llmrs_cli.kernels.gemm.Gemm", Gemm)
    top = tops.ceilings(gpu.backend)
    assert top.operations() == pytest.approx(2 * 64**3 / 1e-3)
    assert top.read_seconds(1 << 16) == pytest.approx(1e-3)
    assert top.read_seconds(1 << 21) == pytest.approx(2e-3)
    bed = kernels.lay(gpu.checkpoint, gpu.backend, top)
    timings = [*kernels.time_linears(bed, (1, 70)), *kernels.time_attention(bed, ((2, 70),), (9,), 1 << 16)]
    assert {t.op for t in timings} == {"qkv", "o", "gate_up", "down", "head", "attend"}
    assert all(t.us >= 1000 for t in timings)
    (fused,) = (t for t in timings if t.op == "gate_up" and t.tokens == 70)
    assert fused.us == pytest.approx(1000), "the norm is made of what the product before left, as in a step"


@pytest.mark.usefixtures("gpu")
def test_the_bus_is_timed_with_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_token, "BUS_BYTES", 1 << 12)
    assert first_token.bus_rate() > 0


def test_every_engine_takes_the_gpu_into_its_thread(gpu: Workplace) -> None:
    for _ in range(2):
        with gpu.engine(1, 64):
            pass
    threads = gpu.backend.device.threads  # type: ignore[attr-defined]
    assert threads and set(threads) == {"llmrs-engine"}


@pytest.mark.usefixtures("gpu")
def test_what_is_multiplied_is_noise_without_infinities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tops, "NOISE_PIECE", 1000)
    values = bf16_to_f32(np.asarray(tops._noise(4096)))
    assert np.isfinite(values).all()
    assert np.abs(values).min() >= 2**-7 and np.abs(values).max() < 2
    assert len(np.unique(values)) > 1000
    assert 0.4 < (values < 0).mean() < 0.6
