"""The compiled sampler draws what the definition draws, to the bit, whatever is asked of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmrs_cli.engine.arrays import Draws, Floats, RowSampling
from llmrs_cli.engine.backends import reference_random, reference_sampling
from llmrs_cli.engine.backends.cpu_sampling import draw_rows, score_rows
from llmrs_cli.kernels.simd import noise, program
from llmrs_cli.kernels.simd.crew import Crew
from tests.helpers.steps import greedy, tokens
from tests.helpers.tolerances import assert_close

CONTEXT = 24
"""Tokens that each row of these tests holds."""


BOARD = Crew(2, lambda board: None).board


def loops() -> program.Program:
    return program.load(program.default_cache())


def states(vocab: int) -> st.SearchStrategy[RowSampling]:
    """Sampling states with every rule on and off."""
    ids = st.lists(st.integers(0, vocab - 1), unique=True, max_size=5)

    def build(stop: list[int], bias: list[int], **given: Any) -> RowSampling:
        values = np.linspace(-4, 4, len(bias)).astype(np.float32)
        return greedy(bias_ids=tokens(*bias), bias_values=values, stop_ids=tokens(*stop), **given)

    return st.builds(
        build,
        stop=ids,
        bias=ids,
        prompt=st.integers(0, CONTEXT),
        temperature=st.sampled_from([0.0, 1e-4, 0.3, 0.8, 1.0, 2.0]),
        top_k=st.sampled_from([0, 0, 1, 2, 17, vocab - 1, vocab, 10**6]),
        top_p=st.sampled_from([1.0, 1.0, 0.0, 1e-3, 0.5, 0.9, 0.999, 1 - 2**-24]),
        min_p=st.sampled_from([0.0, 0.0, 1e-9, 0.01, 0.5, 1.0]),
        repetition_penalty=st.sampled_from([1.0, 1.2, 0.5]),
        presence_penalty=st.sampled_from([0.0, 0.7, -2.0]),
        frequency_penalty=st.sampled_from([0.0, 0.31, -0.5]),
        seed=st.integers(0, 2**64 - 1),
        choice=st.integers(0, 2**20),
        min_length=st.sampled_from([0, CONTEXT, CONTEXT + 1]),
    )


def logits_of(kind: str, rng: np.random.Generator, rows: int, vocab: int) -> Floats:
    logits = (rng.standard_normal((rows, vocab)) * 4).astype(np.float32)
    if kind == "ties":
        logits = np.round(logits / 2)
        logits[:, ::7] *= -0.0
    if kind == "flat":
        logits[:] = -1.5
    if kind == "peaked":
        logits *= 10
    if kind == "holes":
        logits[rng.random(logits.shape) < 0.9] = -np.inf
    if kind == "broken":
        logits[rng.integers(rows), rng.integers(vocab)] = rng.choice([np.nan, np.inf])
    return logits


KINDS = ["plain", "ties", "flat", "peaked", "holes", "broken"]


def both(
    logits: Floats, state: list[RowSampling], held: NDArray[np.int32], mask: NDArray[np.uint32] | None
) -> tuple[Draws, Draws]:
    """What the compiled sampler draws, and what the definition says."""
    count = len(state)
    lengths = np.full(count, CONTEXT, np.int32)
    got = draw_rows(logits, state, np.arange(count, dtype=np.int32), lengths, held, mask, loops(), BOARD)
    return got, reference_sampling.draw_rows(logits, state, [row[:CONTEXT] for row in held], mask)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_definition_s_token_is_drawn(kind: str, data: st.DataObject) -> None:
    vocab = data.draw(st.sampled_from([5, 16, 33, 257, 3000]), "vocab")
    state = data.draw(st.lists(states(vocab), min_size=1, max_size=3), "states")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), "seed"))
    held = rng.integers(0, vocab, (len(state), CONTEXT + 1)).astype(np.int32)
    words = -(-vocab // 32)
    masked = data.draw(st.booleans(), "masked")
    mask = rng.integers(0, 2**32, (len(state), words)).astype(np.uint32) if masked else None
    got, wanted = both(logits_of(kind, rng, len(state), vocab), state, held, mask)
    assert got.failed.tolist() == wanted.failed.tolist()
    assert got.ids.tolist() == wanted.ids.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_a_real_vocabulary_is_drawn_from_alike(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((6, 49152)) * 3).astype(np.float32)
    held = rng.integers(0, 49152, (6, CONTEXT + 1)).astype(np.int32)
    state = [
        greedy(temperature=1.0, seed=seed),
        greedy(temperature=2.0, top_p=0.99, seed=seed),
        greedy(temperature=0.7, top_p=0.9, seed=seed),
        greedy(temperature=1.0, top_k=50, min_p=0.01, seed=seed),
        greedy(temperature=1.5, top_k=20000, top_p=0.95, seed=seed),
        greedy(repetition_penalty=1.1),
    ]
    got, wanted = both(logits, state, held, None)
    assert got.ids.tolist() == wanted.ids.tolist()


def test_a_row_draws_the_same_alone_and_in_company() -> None:
    rng = np.random.default_rng(5)
    logits = logits_of("plain", rng, 5, 1000)
    held = rng.integers(0, 1000, (5, CONTEXT + 1)).astype(np.int32)
    state = [greedy(temperature=1.0, top_p=0.8, repetition_penalty=1.2, seed=s) for s in range(5)]
    together, _ = both(logits, state, held, None)
    alone = [both(logits[r : r + 1], [state[r]], held[r : r + 1], None)[0].ids[0] for r in range(5)]
    assert together.ids.tolist() == alone


def test_log_probabilities_come_with_the_best_alternatives_lower_ids_first() -> None:
    logits = np.array([[1.0, 3.0, 3.0, -np.inf, 2.0, 3.0]], np.float32)
    scored = score_rows(logits, tokens(4), 4, loops(), BOARD)
    wanted = reference_sampling.score(logits, tokens(4), 4)
    assert scored.top_ids.tolist() == [[1, 2, 5, 4]]
    assert_close("score", "cpu", scored.logprobs, wanted.logprobs)
    assert_close("score", "cpu", scored.top_logprobs, wanted.top_logprobs)
    assert not scored.failed.any()


def test_a_failed_row_reports_nothing_of_its_logits() -> None:
    logits = np.array([[0.0, np.nan, 1.0, 0.5], [0.0, 2.0, 1.0, 0.5]], np.float32)
    held = np.zeros((2, CONTEXT + 1), np.int32)
    got, wanted = both(logits, [greedy(logprobs=2), greedy(logprobs=1)], held, None)
    assert got.failed.tolist() == [True, False]
    assert got.logprobs[0] == 0
    assert_close("score", "cpu", got.top_logprobs, wanted.top_logprobs)


def test_constants_are_those_of_the_definition() -> None:
    assert reference_random.LOG[:4] == (noise.L0, noise.L1, noise.L2, noise.L3)
    assert reference_random.LOG[4:] == (noise.L4, noise.L5, noise.L6, noise.L7)
    assert (noise.E0, noise.E1, noise.E2, noise.E3, noise.E4) == reference_random.EXP
    assert (noise.FIRST_FACTOR, noise.SECOND_FACTOR) == reference_random.PHILOX_MULTIPLIERS
    assert (noise.FIRST_STEP, noise.SECOND_STEP) == reference_random.PHILOX_KEY_STEPS
    names = ("BELOW_ONE", "SERIES_BELOW", "SQRT_HALF", "LN2_HIGH", "LN2_LOW", "LOG2_E", "MASS_FLOOR")
    assert all(getattr(noise, name) == getattr(reference_random, name) for name in names)
