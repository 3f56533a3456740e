"""The sampler's rules, one hand-written case each, and its kept sets against the textbook in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine.arrays import Floats, RowSampling
from llmrs_cli.engine.backends.reference_sampling import draw, draw_rows, keep, scale, score
from tests.helpers.steps import greedy, tokens

A, B, C, D = 3, 5, 11, 17
"""Ids of the few tokens that can be drawn in a vocabulary of 20."""
VOCAB = 20
HOT = greedy(temperature=1.0)


def logits(**values: float) -> Floats:
    """A vocabulary of 20 with the given logits for A, B, C, D and -50 elsewhere."""
    row = np.full(VOCAB, -50, np.float32)
    for name, value in values.items():
        row[{"a": A, "b": B, "c": C, "d": D}[name]] = value
    return row


def probabilities(**values: float) -> Floats:
    return logits(**{name: float(np.log(value)) for name, value in values.items()})


def drawn(row: Floats, state: RowSampling, seeds: int = 300, known: Sequence[int] = (1,)) -> set[int]:
    """Every id that some seed draws."""
    return {draw(row, replace(state, seed=seed), tokens(*known))[0] for seed in range(seeds)}


def random_row(seed: int, vocab: int = 40, spread: float = 3.0) -> Floats:
    return (np.random.default_rng(seed).standard_normal(vocab) * spread).astype(np.float32)


# -- greedy ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("top_p", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("top_k", [0, 1, 50])
def test_temperature_zero_takes_the_best_whatever_else_is_set(top_p: float, top_k: int) -> None:
    state = greedy(top_p=top_p, top_k=top_k, min_p=0.5)
    assert drawn(logits(a=1.0, b=0.9), state, seeds=50) == {A}


def test_equal_logits_go_to_the_lower_id() -> None:
    assert draw(logits(b=2.0, a=2.0, c=2.0), greedy(), tokens()) == (A, False)


def test_zeros_of_both_signs_are_equal() -> None:
    assert draw(np.array([-1, -0.0, 0.0], np.float32), greedy(), tokens()) == (1, False)


# -- what is kept ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("top_p", "expected"), [(1.0, {A, B, C, D}), (0.6, {A, B}), (0.0, {A})])
def test_top_p_keeps_the_nucleus_and_never_less_than_one(top_p: float, expected: set[int]) -> None:
    row = probabilities(a=0.5, b=0.3, c=0.15, d=0.05)
    assert drawn(row, replace(HOT, top_p=top_p)) == expected


def test_top_k_keeps_exactly_k_and_lower_ids_among_equals() -> None:
    row = logits(d=1.0, c=1.0, b=1.0, a=1.0)
    assert drawn(row, replace(HOT, top_k=2)) == {A, B}


def test_top_p_keeps_lower_ids_among_equals() -> None:
    row = logits(d=1.0, c=1.0, b=1.0, a=1.0)
    assert drawn(row, replace(HOT, top_p=0.5)) == {A, B}


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    row = probabilities(a=0.5, b=0.3, c=0.15, d=0.05)
    # Of {A, B} A has 0.625: enough for 0.6, though it has 0.5 of the whole.
    assert drawn(row, replace(HOT, top_k=2, top_p=0.6)) == {A}
    assert drawn(row, replace(HOT, top_k=2, top_p=0.7)) == {A, B}


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, {A, B}), (2.0, {A, B, C}), (0.25, {A})], ids=str)
def test_min_p_is_a_share_of_the_best_at_the_temperature(temperature: float, expected: set[int]) -> None:
    row = probabilities(a=0.5, b=0.3, c=0.15, d=0.05)
    assert drawn(row, replace(HOT, temperature=temperature, min_p=0.45)) == expected


def test_min_p_one_keeps_the_best_alone() -> None:
    assert drawn(logits(a=1.0, b=0.999), replace(HOT, min_p=1.0)) == {A}


def oracle(row: Floats, state: RowSampling) -> tuple[set[int], float]:
    """Kept ids by the textbook rules in float64, and how near the nearest decision was to a tie."""
    order = np.argsort(-row, kind="stable")
    p = np.exp((row.astype(np.float64) - row.max()) / state.temperature)[order]
    near = [float(np.min(np.abs(p - state.min_p)))] if state.min_p else []
    order, p = order[p >= state.min_p], p[p >= state.min_p]
    if state.top_k:
        order, p = order[: state.top_k], p[: state.top_k]
    if state.top_p < 1:
        sums = np.cumsum(p / p.sum())
        near.append(float(np.min(np.abs(sums - state.top_p))))
        order = order[: int(np.sum(sums < state.top_p)) + 1]
    return set(order.tolist()), min(near, default=1.0)


@given(st.integers(0, 10**6), st.floats(0.1, 2), st.integers(0, 45), st.floats(0, 1), st.floats(0, 0.9))
def test_kept_sets_equal_the_textbook_away_from_ties(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    state = greedy(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    row = random_row(seed)
    expected, nearness = oracle(row, state)
    kept = keep(scale(row, state), state)
    assert np.all(np.diff(kept) > 0)
    if nearness > 1e-5:
        assert set(kept.tolist()) == expected


# -- penalties, bias, bans ------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "c"), [(1.5, 1.0), (-1.0, -1.5)])
def test_repetition_penalty_makes_prompt_tokens_less_likely_on_both_sides_of_zero(a: float, c: float) -> None:
    row = logits(a=a, c=c)
    assert draw(row, greedy(prompt=2), tokens(A, 9))[0] == A
    assert draw(row, greedy(prompt=2, repetition_penalty=2.0), tokens(A, 9))[0] == C


def test_repetition_penalty_counts_an_id_once() -> None:
    row = logits(a=3.0, c=1.4)
    assert draw(row, greedy(prompt=3, repetition_penalty=2.0), tokens(A, A, A))[0] == A


def test_presence_and_frequency_penalties_see_the_answer_alone() -> None:
    row = logits(a=1.0, c=0.5)
    state = greedy(prompt=2, presence_penalty=0.6, frequency_penalty=0.6)
    assert draw(row, state, tokens(A, A))[0] == A
    assert draw(row, state, tokens(A, A, A))[0] == C


def test_frequency_penalty_grows_with_the_count_and_presence_penalty_does_not() -> None:
    row = logits(a=1.0, c=0.0)
    frequency, presence = greedy(frequency_penalty=0.4), greedy(presence_penalty=0.4)
    assert [draw(row, frequency, tokens(*[A] * n))[0] for n in (1, 2, 3)] == [A, A, C]
    assert draw(row, presence, tokens(*[A] * 9))[0] == A


def test_bias_of_100_decides_and_of_minus_100_forbids() -> None:
    row = logits(a=5.0, b=1.0, c=4.0)
    values = np.array([-100, 100], np.float32)
    assert drawn(row, replace(HOT, bias_ids=tokens(A, B), bias_values=values)) == {B}


def test_stop_ids_cannot_be_drawn_before_min_tokens() -> None:
    state = greedy(prompt=2, min_length=4, stop_ids=tokens(A, B))
    row = logits(a=9.0, b=8.0, c=1.0)
    assert [draw(row, state, tokens(*range(n)))[0] for n in (2, 3, 4)] == [C, C, A]


@pytest.mark.parametrize("state", [greedy(), HOT])
def test_masked_ids_are_never_drawn(state: RowSampling) -> None:
    mask = np.array([1 << B | 1 << C], np.uint32)
    ids = {draw(logits(a=9.0, b=1.0, c=1.0), replace(state, seed=s), tokens(1), mask)[0] for s in range(100)}
    assert ids == ({B} if state.temperature == 0 else {B, C})


def test_a_mask_covers_ids_past_its_first_word() -> None:
    row = np.zeros(70, np.float32)
    mask = np.array([0, 0, 1 << 5], np.uint32)
    assert draw(row, greedy(), tokens(), mask) == (69, False)


# -- rows that fail -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [greedy(), replace(HOT, top_p=0.9), replace(HOT, top_k=3, min_p=0.1)])
@pytest.mark.parametrize("poison", [np.nan, np.inf, "nothing"])
def test_a_row_without_sound_logits_fails_with_a_valid_id(state: RowSampling, poison: Any) -> None:
    row = random_row(1)
    row[:] = -np.inf if poison == "nothing" else row
    row[4] = -np.inf if poison == "nothing" else poison
    assert draw(row, state, tokens(1, 2)) == (0, True)


def test_negative_infinity_is_an_id_that_is_not_drawn() -> None:
    row = np.array([-np.inf, 1.0, -np.inf, 0.0], np.float32)
    assert drawn(row, HOT) == {1, 3}


def test_a_mask_that_allows_nothing_fails_the_row() -> None:
    assert draw(random_row(1), greedy(), tokens(), np.zeros(2, np.uint32)) == (0, True)


def test_a_failed_row_leaves_its_neighbours_alone() -> None:
    states = [greedy(logprobs=2), replace(HOT, seed=5, logprobs=0), replace(HOT, seed=6)]
    rows = np.stack([random_row(i) for i in range(3)])
    known = [tokens(1, 2)] * 3
    sound = draw_rows(rows, states, known, None)
    rows[1, 7] = np.nan
    hurt = draw_rows(rows, states, known, None)
    assert hurt.failed.tolist() == [False, True, False]
    assert hurt.ids[[0, 2]].tolist() == sound.ids[[0, 2]].tolist()
    assert hurt.logprobs[[0, 2]].tolist() == sound.logprobs[[0, 2]].tolist()
    assert np.isfinite(hurt.logprobs).all() and np.isfinite(hurt.top_logprobs).all()


# -- log-probabilities ----------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("top_p", [0.1, 1.0])
def test_logprobs_do_not_depend_on_how_the_token_was_drawn(temperature: float, top_p: float) -> None:
    row = logits(a=1.0, b=0.0, c=-1.0, d=-2.0)
    state = greedy(temperature=temperature, top_p=top_p, logprobs=4, seed=3)
    draws = draw_rows(row[None], [state], [tokens(1)], None)
    assert draws.top_ids.tolist() == [[A, B, C, D]]
    assert draws.top_logprobs[0].tolist() == pytest.approx([-0.4402, -1.4402, -2.4402, -3.4402], abs=1e-4)
    place = draws.top_ids[0].tolist().index(draws.ids[0])
    assert draws.logprobs[0] == draws.top_logprobs[0, place]


def test_alternatives_among_equals_have_lower_ids_first() -> None:
    row = np.zeros((1, 9), np.float32)
    assert score(row, tokens(4), alternatives=3).top_ids.tolist() == [[0, 1, 2]]


def test_no_more_alternatives_than_there_are_ids() -> None:
    assert score(np.zeros((2, 3), np.float32), tokens(0, 1), alternatives=20).top_ids.shape == (2, 3)


def test_a_batch_in_which_nobody_asks_reports_none() -> None:
    draws = draw_rows(random_row(1)[None], [HOT], [tokens(1)], None)
    assert draws.top_ids.shape == draws.top_logprobs.shape == (1, 0)
    assert draws.logprobs.tolist() == [0.0]


def test_scoring_an_unsound_row_flags_it_alone() -> None:
    rows_ = np.stack([random_row(1), random_row(2)])
    rows_[0, 3] = np.nan
    scored = score(rows_, tokens(1, 1), alternatives=1)
    assert scored.failed.tolist() == [True, False]
    assert np.isfinite(scored.logprobs[1])
