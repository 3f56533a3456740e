"""The sampler on the GPU against its definition: the same token, bit for bit, in any batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine.arrays import Draws, RowSampling
from llmrs_cli.engine.backends.reference_sampling import draw_rows, score
from llmrs_cli.kernels.device import CudaDevice
from tests.gpu.halves import cp
from tests.helpers.hard_rows import FILTERS, hard_rows
from tests.helpers.steps import batch, greedy

from llmrs_cli.engine.backends.base import RowLimits  # isort: skip

CONTEXT = 64


def draw_on_gpu(
    device: CudaDevice,
    logits: NDArray[np.float32],
    states: Sequence[RowSampling],
    known: Sequence[Sequence[int]],
    mask: NDArray[np.uint32] | None = None,
) -> tuple[Draws, Any]:
    """The draws, and the token pool afterwards."""
    from llmrs_cli.engine.backends.cuda_draws import DrawPool
    from llmrs_cli.engine.backends.cuda_memory import Arena
    from llmrs_cli.engine.backends.cuda_rows import CudaRows

    arena = Arena()
    rows = CudaRows(
        RowLimits(len(states), CONTEXT, logits.shape[1]),
        device,
        arena,
        cp.cuda.Stream(non_blocking=True),
        264,
    )
    device.synchronise()
    for row, (state, tokens) in enumerate(zip(states, known, strict=True)):
        rows.start(row, tokens, state)
        rows.grant(row, 0, [0])
    step = rows.begin(batch(*((row, len(tokens) - 1, 1, True) for row, tokens in enumerate(known))))
    pool = DrawPool(device, arena)
    drawn = pool.sample(cp.asarray(logits), rows.state, step, mask)
    draws = pool.fetch(drawn)
    return draws, cp.asnumpy(rows.state.pool)


def random_states(rng: np.random.Generator, count: int, vocab: int) -> list[RowSampling]:
    pick = rng.choice
    return [
        greedy(
            prompt=3,
            temperature=float(pick([0.0, 1e-5, 0.3, 0.8, 1.0, 2.0])),
            top_k=int(pick([0, 0, 1, 3, 30, 1000, 10**6])),
            top_p=float(pick([0.0, 0.3, 0.95, 1.0, 1.0])),
            min_p=float(pick([0.0, 0.0, 0.02, 0.6])),
            repetition_penalty=float(pick([1.0, 1.3, 0.5])),
            presence_penalty=float(pick([0.0, 0.7, -2.0])),
            frequency_penalty=float(pick([0.0, 0.31, -0.5])),
            seed=int(rng.integers(0, 2**63)) * 2 + 1,
            choice=int(rng.integers(0, 4)),
            bias_ids=np.unique(rng.integers(0, vocab, int(pick([0, 5, 900])))).astype(np.int32),
            bias_values=np.zeros(0, np.float32),
            stop_ids=np.unique(rng.integers(0, vocab, int(pick([0, 3])))).astype(np.int32),
            min_length=int(pick([0, 50])),
        )
        for _ in range(count)
    ]


def with_biases(rng: np.random.Generator, states: list[RowSampling]) -> list[RowSampling]:
    from dataclasses import replace

    return [
        replace(state, bias_values=rng.uniform(-3, 3, len(state.bias_ids)).astype(np.float32))
        for state in states
    ]


@pytest.mark.parametrize("vocab", [40, 1001, 152_064])
@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize("masked", [True, False])
def test_draws_are_those_of_the_definition(device: CudaDevice, vocab: int, rows: int, masked: bool) -> None:
    rng = np.random.default_rng(vocab + rows)
    count = rows if vocab < 10_000 else min(rows, 24)
    logits = (rng.standard_normal((count, vocab)) * rng.choice([0.1, 3, 10], (count, 1))).astype(np.float32)
    logits[:, :7] = np.round(logits[:, :7])  # ties
    if count > 2:
        logits[1] = np.round(logits[1])  # many ties
        logits[2, ::3] = -np.inf
    states = with_biases(rng, random_states(rng, count, vocab))
    known = [rng.integers(0, vocab, int(rng.integers(1, 40))).tolist() for _ in range(count)]
    mask = rng.integers(0, 2**32, (count, -(-vocab // 32)), dtype=np.uint32) if masked else None
    draws, pool = draw_on_gpu(device, logits, states, known, mask)
    wanted = draw_rows(logits, states, [np.array(k, np.int32) for k in known], mask)
    assert draws.failed.tolist() == wanted.failed.tolist()
    wrong = [
        (r, int(draws.ids[r]), int(wanted.ids[r]), states[r])
        for r in range(count)
        if draws.ids[r] != wanted.ids[r]
    ]
    assert not wrong, f"{len(wrong)} of {count}: {wrong[:2]}"
    assert [pool[r, len(known[r])] for r in range(count)] == draws.ids.tolist()


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("vocab", [1203, 40_000])
def test_hard_rows_are_drawn_as_defined(device: CudaDevice, vocab: int, filters: str) -> None:
    logits = hard_rows(vocab)
    states = [greedy(temperature=0.7, seed=11 + r, **FILTERS[filters]) for r in range(len(logits))]
    wanted = draw_rows(logits, states, [np.array([1], np.int32)] * len(states), None)
    draws, _ = draw_on_gpu(device, logits, states, [[1]] * len(states))
    assert draws.failed.tolist() == wanted.failed.tolist()
    assert draws.ids.tolist() == wanted.ids.tolist()


def test_a_token_depends_on_no_other_row(device: CudaDevice) -> None:
    """However many rows there are: each number of them has its own number of blocks for a row."""
    rng = np.random.default_rng(8)
    logits = (rng.standard_normal((264, 32_007)) * 2).astype(np.float32)
    kinds = list(FILTERS.values())
    states = [greedy(temperature=0.8, seed=r, **kinds[r % len(kinds)]) for r in range(264)]
    together, _ = draw_on_gpu(device, logits, states, [[1]] * 264)
    for first, count in ((0, 1), (1, 1), (5, 9), (20, 70)):
        rows = slice(first, first + count)
        draws, _ = draw_on_gpu(device, logits[rows], states[rows], [[1]] * count)
        assert draws.ids.tolist() == together.ids[rows].tolist()
    wanted = draw_rows(logits[:27], states[:27], [np.array([1], np.int32)] * 27, None)
    assert together.ids[:27].tolist() == wanted.ids.tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_no_number_fails_alone(device: CudaDevice, temperature: float, value: float) -> None:
    logits = np.random.default_rng(0).standard_normal((3, 5000)).astype(np.float32)
    logits[1, 4321] = value
    states = [greedy(temperature=temperature, top_p=0.9, seed=5)] * 3
    draws, _ = draw_on_gpu(device, logits, states, [[1]] * 3)
    assert draws.failed.tolist() == [False, True, False]
    assert draws.ids[1] == 0


def test_all_banned_fails(device: CudaDevice) -> None:
    logits = np.zeros((1, 64), np.float32)
    draws, _ = draw_on_gpu(device, logits, [greedy()], [[1]], np.zeros((1, 2), np.uint32))
    assert draws.failed.tolist() == [True]


def test_log_probabilities(device: CudaDevice) -> None:
    rng = np.random.default_rng(1)
    logits = (rng.standard_normal((5, 3001)) * 4).astype(np.float32)
    states = [greedy(temperature=1.0, seed=r, repetition_penalty=2.0, logprobs=4) for r in range(5)]
    draws, _ = draw_on_gpu(device, logits, states, [[7, 8]] * 5)
    wanted = score(logits, draws.ids, 4)
    assert draws.top_ids.tolist() == wanted.top_ids.tolist()
    assert draws.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)
    assert draws.top_logprobs == pytest.approx(wanted.top_logprobs, abs=1e-4)
