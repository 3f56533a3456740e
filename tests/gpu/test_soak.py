"""Long loads on the GPU: nobody fails, no memory grows, no block leaks, company changes no bit.

The short ones run a tiny model. With SOAK=1 the long ones run random weights in the shape of a real model,
qwen2.5-0.5b or what SOAK_MODEL names, for SOAK_MINUTES (8). 4-bit weights stay packed wherever bits need not be fixed:
SOAK_MODEL=qwen2.5-7b-awq is the long load of their kernels, and `benchmarks.gpu_targets --free` that of a server.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmrs_cli.cli.bench import random_model
from llmrs_cli.engine.api import Engine, open_engine
from llmrs_cli.engine.types import Request, SamplingParams
from llmrs_cli.engine.weights.checkpoint import Checkpoint, open_checkpoint
from tests.gpu.halves import cp
from tests.helpers import soak
from tests.helpers.tiny_model import TinyModel, write_tiny

long = pytest.mark.skipif(os.environ.get("SOAK") != "1", reason="long: run with SOAK=1")
MINUTES = float(os.environ.get("SOAK_MINUTES", "8"))
Open = Callable[..., Engine]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """Opens engines on backends of their own; all are closed."""
    from llmrs_cli.engine.backends.cuda import CudaBackend

    monkeypatch.setenv("LLMRS_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
    engines: list[Engine] = []

    def open_(checkpoint: Checkpoint, deterministic: bool = False, **wishes: Any) -> Engine:
        engines.append(open_engine(checkpoint, CudaBackend(0, deterministic, packed=True), **wishes))
        return engines[-1]

    yield open_
    for engine in engines:
        engine.close()


@pytest.fixture
def tiny(tmp_path: Path) -> Checkpoint:
    return open_checkpoint(write_tiny(tmp_path, TinyModel()))


def device_bytes() -> int:
    """Of this device that are taken, by whomever."""
    free, total = cp.cuda.runtime.memGetInfo()
    return int(total - free)


def survivors(count: int, vocab: int, answer: int) -> list[Request]:
    draw = np.random.default_rng(5)
    return [
        Request(
            f"k{i}",
            tuple(draw.integers(0, vocab, 20 + i).tolist()),
            SamplingParams(answer, seed=i, ignore_eos=True),
        )
        for i in range(count)
    ]


# -- short ----------------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
@pytest.mark.parametrize("awq", [False, True])
def test_memory_is_flat_over_ten_thousand_steps(opened: Open, tmp_path: Path, awq: bool) -> None:
    checkpoint = open_checkpoint(write_tiny(tmp_path, TinyModel(awq=awq)))
    engine = opened(checkpoint, context=256, rows=32, memory=2 << 30)
    device, pool = (
        soak.Watch(device_bytes),
        soak.Watch(lambda: int(cp.get_default_memory_pool().total_bytes())),
    )

    def look() -> None:
        device.look()
        pool.look()

    soak.step_for_long(engine, 10_000, lambda: None)  # every size of a step has been met and recorded
    soak.step_for_long(engine, 10_000, look)
    assert (device.growth, pool.growth) == (0, 0)


@pytest.mark.timeout(300)
def test_steps_take_no_memory_beyond_what_was_taken_at_the_start(opened: Open, tiny: Checkpoint) -> None:
    engine = opened(tiny, context=256, rows=64, memory=2 << 30)
    taken = cp.get_default_memory_pool().total_bytes()
    soak.answer_all(engine, list(soak.mixed(np.random.default_rng(0), engine.vocab, 500, 200, "m")))
    scored = SamplingParams(8, logprobs=20, prompt_logprobs=5, ignore_eos=True)
    for i in range(64):
        engine.submit(Request(f"p{i}", tuple(range(5, 205)), scored))
    while engine.has_work:
        engine.step()
    assert cp.get_default_memory_pool().total_bytes() == taken


@pytest.mark.timeout(300)
def test_two_thousand_aborts_leak_nothing_and_leave_the_others_their_bits(
    opened: Open, tiny: Checkpoint
) -> None:
    engine = opened(tiny, deterministic=True, context=256, rows=64, memory=2 << 30)
    kept = survivors(16, engine.vocab, 100)
    calm = soak.answer_all(engine, kept)
    assert soak.abort_at_random(engine, 2_000, kept) == calm


@pytest.mark.timeout(300)
def test_aborts_of_a_packed_model_leak_nothing(opened: Open, tmp_path: Path) -> None:
    """Its bits may depend on company; whose tokens they are, and how many, may not."""
    checkpoint = open_checkpoint(write_tiny(tmp_path, TinyModel(awq=True)))
    engine = opened(checkpoint, context=256, rows=64, memory=2 << 30)
    found = soak.abort_at_random(engine, 500, survivors(16, engine.vocab, 100))
    assert {len(tokens) for tokens in found.values()} == {100}


@pytest.mark.timeout(300)
def test_a_prefix_from_the_cache_changes_no_bit(opened: Open, tiny: Checkpoint) -> None:
    engine = opened(tiny, deterministic=True, context=512, rows=16, memory=2 << 30)
    alone, shared = (
        soak.answers_with_logprobs(
            engine, soak.at_block_edges(np.random.default_rng(3), engine.vocab, 200, 64, salt)
        )
        for salt in (True, False)
    )
    assert engine.stats().cached_tokens > 0
    assert alone == shared


# -- long -----------------------------------------------------------------------------------------------


@pytest.fixture
def real() -> Checkpoint:
    """Random weights in the shape of a real model."""
    return random_model(os.environ.get("SOAK_MODEL", "qwen2.5-0.5b"))


@pytest.mark.soak
@long
@pytest.mark.timeout(1200)
def test_thousands_of_mixed_requests_all_end_and_nothing_grows(opened: Open, real: Checkpoint) -> None:
    engine = opened(real, context=9000, rows=256)
    draw = np.random.default_rng(0)
    soak.answer_all(engine, list(soak.mixed(draw, engine.vocab, 512, 8192, "w")))
    pool = soak.Watch(lambda: int(cp.get_default_memory_pool().total_bytes()))
    pool.look()
    began = time.perf_counter()
    answers = soak.answer_all(engine, list(soak.mixed(draw, engine.vocab, 4096, 8192, "r")), pool.look)
    seconds = time.perf_counter() - began
    print(f"{sum(map(len, answers.values())) / seconds:.0f} tok/s, {len(answers) / seconds:.1f} requests/s")
    assert len(answers) == 4096 and all(answers.values())
    assert max(pool.seen) == pool.seen[0]


@pytest.mark.soak
@long
@pytest.mark.timeout(1200)
def test_two_thousand_aborts_at_256_running(opened: Open, real: Checkpoint) -> None:
    engine = opened(real, deterministic=True, context=512, rows=256)
    kept = survivors(64, engine.vocab, 200)
    calm = soak.answer_all(engine, kept)
    assert soak.abort_at_random(engine, 2_000, kept) == calm


@pytest.mark.soak
@long
@pytest.mark.timeout(1200)
def test_two_thousand_prompts_about_block_edges_find_their_prefixes_to_the_bit(
    opened: Open, real: Checkpoint
) -> None:
    engine = opened(real, deterministic=True, context=512, rows=128)
    alone, shared = (
        soak.answers_with_logprobs(
            engine, soak.at_block_edges(np.random.default_rng(3), engine.vocab, 2_000, 64, salt)
        )
        for salt in (True, False)
    )
    assert [name for name in alone if alone[name] != shared[name]] == []


@pytest.mark.soak
@long
@pytest.mark.timeout(3600)
def test_full_load_for_minutes_takes_no_memory(opened: Open, real: Checkpoint) -> None:
    engine = opened(real, context=1024, rows=256)
    soak.step_for_long(engine, 2_000, lambda: None)
    device, host = soak.Watch(device_bytes), soak.Watch(soak.resident_bytes)
    requests = engine.stats().requests
    ends = time.monotonic() + 60 * MINUTES
    while time.monotonic() < ends:
        soak.step_for_long(engine, 1_000, lambda: None)
        device.look()
        host.look()
    done = engine.stats().requests - requests
    assert device.growth == 0
    assert host.growth <= 512 * done
