"""What must hold of any draw, on every backend: order of the rules, neutral values, shares of probability."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmrs_cli.engine.arrays import Draws, Floats, RowSampling
from llmrs_cli.engine.backends.base import Backend, RowLimits
from llmrs_cli.engine.backends.reference_sampling import keep, scale
from tests.helpers.steps import batch, greedy, tokens

VOCAB = 70
PROMPT = 5
FEW = settings(max_examples=15)
SEEDS = st.integers(0, 2**64 - 1)
HOT = greedy(prompt=PROMPT, temperature=0.9)


def row_of(seed: int, spread: float = 3.0) -> Floats:
    """Multiples of 1/256 below 64: sums with such numbers are exact."""
    values = np.random.default_rng(seed % 2**32).standard_normal(VOCAB) * spread
    return (np.round(values * 256) / 256).astype(np.float32)


def drawn(
    backend: Backend,
    logits: Floats,
    states: list[RowSampling],
    known: int = PROMPT,
    mask: NDArray[np.uint32] | None = None,
) -> Draws:
    """One draw per state from the same logits, each in a row of its own whose tokens are 0, 1, 2 …"""
    rows = backend.open_rows(RowLimits(len(states), 32, VOCAB))
    for row, state in enumerate(states):
        rows.start(row, list(range(known)), state)
        rows.grant(row, 0, [2 * row, 2 * row + 1])
    step = rows.begin(batch(*((row, known - 1, 1, True) for row in range(len(states)))))
    return backend.fetch(backend.sample(np.tile(logits, (len(states), 1)), rows, step, mask))


def ids(backend: Backend, logits: Floats, state: RowSampling, count: int = 16, **how: Any) -> list[int]:
    """What `count` seeds draw."""
    found: list[int] = drawn(
        backend, logits, [replace(state, seed=s) for s in range(count)], **how
    ).ids.tolist()
    return found


# -- values that do nothing -----------------------------------------------------------------------------


@FEW
@given(SEEDS)
def test_neutral_values_change_nothing(backend: Backend, seed: int) -> None:
    logits = row_of(seed)
    states = [
        HOT,
        replace(HOT, top_k=VOCAB),
        replace(HOT, top_k=VOCAB + 7),
        replace(HOT, min_p=0.0, top_p=1.0, repetition_penalty=1.0),
        replace(HOT, bias_ids=tokens(3, 9), bias_values=np.zeros(2, np.float32)),
        replace(HOT, stop_ids=tokens(1, 2), min_length=PROMPT),
        replace(HOT, logprobs=3),
    ]
    found = drawn(backend, logits, [replace(state, seed=seed) for state in states])
    assert len(set(found.ids.tolist())) == 1


@FEW
@given(SEEDS)
def test_a_mask_that_allows_everything_changes_nothing(backend: Backend, seed: int) -> None:
    mask = np.full((16, -(-VOCAB // 32)), 0xFFFFFFFF, np.uint32)
    logits = row_of(seed)
    assert ids(backend, logits, HOT) == ids(backend, logits, HOT, mask=mask)


@FEW
@given(SEEDS, st.integers(-40, 40))
def test_logits_have_no_zero_of_their_own(backend: Backend, seed: int, shift: int) -> None:
    """Adding the same number to all of them changes no draw: temperatures that are powers of two keep it exact."""
    state = replace(HOT, temperature=0.5, top_p=0.9, min_p=0.01)
    logits = row_of(seed)
    assert ids(backend, logits, state) == ids(backend, logits + np.float32(shift), state)


@FEW
@given(SEEDS)
def test_doubled_logits_at_a_doubled_temperature_are_the_same(backend: Backend, seed: int) -> None:
    logits = row_of(seed)
    warm, hot = replace(HOT, temperature=0.75), replace(HOT, temperature=1.5)
    assert ids(backend, logits, warm) == ids(backend, 2 * logits, hot)


@FEW
@given(SEEDS)
def test_a_bias_is_a_logit_that_is_higher(backend: Backend, seed: int) -> None:
    logits = row_of(seed)
    state = replace(HOT, bias_ids=tokens(4, 40), bias_values=np.array([2.5, -1.25], np.float32))
    lifted = logits.copy()
    lifted[[4, 40]] += np.array([2.5, -1.25], np.float32)
    assert ids(backend, logits, state) == ids(backend, lifted, HOT)


@FEW
@given(SEEDS, st.lists(st.integers(0, VOCAB - 1), unique=True, min_size=1, max_size=VOCAB - 1))
def test_a_masked_id_is_one_with_no_chance(backend: Backend, seed: int, banned: list[int]) -> None:
    flags = np.ones(96, np.uint8)
    flags[banned] = 0
    words = np.packbits(flags, bitorder="little").view("<u4").astype(np.uint32)
    logits = row_of(seed)
    without = logits.copy()
    without[banned] = -np.inf
    masked = ids(backend, logits, HOT, mask=np.tile(words, (16, 1)))
    assert masked == ids(backend, without, HOT)
    assert not set(masked) & set(banned)


@FEW
@given(SEEDS, st.lists(st.integers(0, VOCAB - 1), unique=True, min_size=1, max_size=9))
def test_stop_ids_before_their_time_are_masked_ids(backend: Backend, seed: int, stops: list[int]) -> None:
    logits = row_of(seed)
    early = replace(HOT, stop_ids=tokens(*sorted(stops)), min_length=PROMPT + 1)
    without = logits.copy()
    without[stops] = -np.inf
    assert ids(backend, logits, early) == ids(backend, without, HOT)
    assert ids(backend, logits, early, known=PROMPT + 1) == ids(backend, logits, HOT, known=PROMPT + 1)


# -- cold ends ------------------------------------------------------------------------------------------


@FEW
@given(SEEDS)
def test_every_rule_at_its_coldest_is_greedy(backend: Backend, seed: int) -> None:
    logits = row_of(seed)
    best = int(np.argmax(logits))
    states = [
        greedy(prompt=PROMPT),
        replace(HOT, top_k=1),
        replace(HOT, top_p=0.0),
        replace(HOT, top_p=1e-9),
    ]
    found = drawn(backend, logits, [replace(state, seed=seed) for state in states])
    assert found.ids.tolist() == [best] * len(states)


@FEW
@given(SEEDS)
def test_greedy_draws_do_not_depend_on_the_seed(backend: Backend, seed: int) -> None:
    assert len(set(ids(backend, row_of(seed), greedy(prompt=PROMPT, top_k=3)))) == 1


@FEW
@given(SEEDS, st.floats(0.5, 1.9), st.integers(1, VOCAB), st.floats(0.05, 1), st.floats(0, 0.5))
def test_what_is_drawn_was_kept(
    backend: Backend, seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    state = replace(HOT, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    logits = row_of(seed)
    kept = set(keep(scale(logits, state), state).tolist())
    assert set(ids(backend, logits, state)) <= kept
    assert int(np.argmax(logits)) in kept
    assert len(kept) <= top_k


@given(SEEDS, st.integers(1, VOCAB), st.integers(1, VOCAB))
def test_a_larger_k_keeps_more(seed: int, one: int, two: int) -> None:
    few, many = (set(keep(row_of(seed), replace(HOT, top_k=k)).tolist()) for k in sorted((one, two)))
    assert few <= many
    assert len(few) == min(one, two)


@given(SEEDS, st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_keeps_more(seed: int, one: float, two: float) -> None:
    few, many = (set(keep(row_of(seed), replace(HOT, top_p=p)).tolist()) for p in sorted((one, two)))
    assert few <= many and few


@given(SEEDS, st.floats(0, 1), st.floats(0, 1))
def test_a_higher_floor_keeps_less(seed: int, one: float, two: float) -> None:
    many, few = (set(keep(row_of(seed), replace(HOT, min_p=p)).tolist()) for p in sorted((one, two)))
    assert few <= many and few


@given(SEEDS, st.floats(0.01, 0.99))
def test_a_nucleus_is_the_shortest_that_reaches_its_share(seed: int, top_p: float) -> None:
    logits = row_of(seed).astype(np.float64)
    kept = keep(logits.astype(np.float32), replace(HOT, top_p=top_p))
    p = np.exp(logits - logits.max())
    p /= p.sum()
    assert p[kept].sum() >= top_p - 1e-6
    assert p[kept].sum() - p[kept].min() < top_p + 1e-6
    assert p[kept].min() >= np.delete(p, kept).max(initial=0)


# -- penalties ------------------------------------------------------------------------------------------


@FEW
@given(SEEDS)
def test_penalties_touch_only_ids_that_occur(backend: Backend, seed: int) -> None:
    """Tokens of the row are 0 … 7, five of them the prompt: others keep their order."""
    logits = row_of(seed)
    logits[:8] = -np.inf
    state = replace(HOT, repetition_penalty=1.7, presence_penalty=1.0, frequency_penalty=0.5)
    assert ids(backend, logits, state, known=8) == ids(backend, logits, HOT, known=8)


@FEW
@given(SEEDS, st.sampled_from([0.25, 0.5, 1.5, -1.0]))
def test_presence_is_a_bias_on_the_ids_of_the_answer(backend: Backend, seed: int, penalty: float) -> None:
    logits = row_of(seed)
    lowered = logits.copy()
    lowered[PROMPT:8] -= np.float32(penalty)
    state = replace(HOT, presence_penalty=penalty)
    assert ids(backend, logits, state, known=8) == ids(backend, lowered, HOT, known=8)
    once = replace(HOT, frequency_penalty=penalty)
    assert ids(backend, logits, once, known=8) == ids(backend, lowered, HOT, known=8)


@FEW
@given(SEEDS)
def test_a_repetition_penalty_of_two_halves_and_doubles(backend: Backend, seed: int) -> None:
    logits = row_of(seed)
    changed = logits.copy()
    changed[:8] = np.where(logits[:8] > 0, logits[:8] / 2, logits[:8] * 2)
    state = replace(HOT, repetition_penalty=2.0)
    assert ids(backend, logits, state, known=8) == ids(backend, changed, HOT, known=8)


# -- what is reported -----------------------------------------------------------------------------------


@FEW
@given(SEEDS, st.integers(0, 20))
def test_alternatives_come_best_first_and_never_add_up_to_more_than_one(
    backend: Backend, seed: int, count: int
) -> None:
    logits = row_of(seed)
    found = drawn(backend, logits, [replace(HOT, seed=seed, logprobs=count)])
    (top,), (values,) = found.top_ids.tolist(), found.top_logprobs.tolist()
    assert len(top) == len(set(top)) == count
    assert values == sorted(values, reverse=True)
    assert logits[top].tolist() == sorted(logits.tolist(), reverse=True)[:count]
    assert np.exp(np.float64(values)).sum() <= 1 + 1e-5
    assert found.logprobs[0] <= 0


@FEW
@given(SEEDS)
def test_scores_of_all_ids_are_a_distribution(backend: Backend, seed: int) -> None:
    logits = np.tile(row_of(seed), (VOCAB, 1))
    found = backend.fetch(backend.score(logits, np.arange(VOCAB, dtype=np.int32), 0))
    assert np.exp(found.logprobs.astype(np.float64)).sum() == pytest.approx(1.0, abs=1e-5)
    assert np.argmax(found.logprobs) == np.argmax(logits[0])
    assert not found.failed.any()


@FEW
@given(SEEDS, st.integers(-100, 100))
def test_scores_do_not_change_with_a_constant(backend: Backend, seed: int, shift: int) -> None:
    target = np.array([7], np.int32)
    one = backend.fetch(backend.score(row_of(seed)[None], target, 2))
    two = backend.fetch(backend.score(row_of(seed)[None] + np.float32(shift), target, 2))
    assert one.top_ids.tolist() == two.top_ids.tolist()
    assert two.logprobs == pytest.approx(one.logprobs, abs=1e-5)


@FEW
@given(SEEDS)
def test_raw_scores_are_reported_whatever_was_done_to_draw(backend: Backend, seed: int) -> None:
    bent = replace(
        HOT,
        repetition_penalty=1.5,
        presence_penalty=1.0,
        top_k=3,
        bias_ids=tokens(3),
        bias_values=np.array([5.0], np.float32),
        logprobs=4,
        seed=seed,
    )
    logits = row_of(seed)
    got = drawn(backend, logits, [bent, replace(greedy(prompt=PROMPT), logprobs=4)], known=8)
    assert got.top_ids[0].tolist() == got.top_ids[1].tolist()
    assert got.top_logprobs[0].tolist() == got.top_logprobs[1].tolist()
    target = np.array([got.ids[0]], np.int32)
    scored = backend.fetch(backend.score(logits[None], target, 0))
    assert got.logprobs[0] == pytest.approx(scored.logprobs[0], abs=1e-6)
