"""Sampling parameters become row state in the form that every backend can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine.sampling import COLDEST, row_sampling
from llmrs_cli.engine.types import SamplingParams, check_params


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(**({"max_tokens": 10} | changes))


def test_values_are_carried_over() -> None:
    given_params = params(temperature=0.7, top_k=40, top_p=0.9, min_p=0.05, seed=2**63 + 1, logprobs=3)
    state = row_sampling(given_params, prompt_length=12, choice=2)
    assert (state.temperature, state.top_k, state.top_p, state.min_p) == (0.7, 40, 0.9, 0.05)
    assert (state.seed, state.choice, state.prompt_length, state.logprobs) == (2**63 + 1, 2, 12, 3)


def test_min_tokens_count_from_the_end_of_the_prompt() -> None:
    assert row_sampling(params(min_tokens=5), prompt_length=7, choice=0).min_length == 12


def test_no_logprobs_are_minus_one_and_zero_alternatives_are_zero() -> None:
    assert row_sampling(params(), 1, 0).logprobs == -1
    assert row_sampling(params(logprobs=0), 1, 0).logprobs == 0


@pytest.mark.parametrize("temperature", [0.0, 1e-300, COLDEST / 2])
def test_a_temperature_too_small_to_divide_by_is_greedy(temperature: float) -> None:
    assert row_sampling(params(temperature=temperature), 1, 0).temperature == 0


def test_bias_entries_of_one_id_add_up() -> None:
    state = row_sampling(params(logit_bias=((9, 1.5), (2, -1.0), (9, 0.25))), 1, 0)
    assert state.bias_ids.tolist() == [2, 9]
    assert state.bias_values.tolist() == [-1.0, 1.75]


def test_stop_ids_are_distinct() -> None:
    assert row_sampling(params(stop_ids=(7, 3, 7)), 1, 0).stop_ids.tolist() == [3, 7]


def test_huge_whole_numbers_fit_32_bits() -> None:
    state = row_sampling(params(top_k=10**12, max_tokens=10**12, min_tokens=10**12), 1, 0)
    assert state.top_k == state.min_length == 2**31 - 1


@given(st.floats(0, 2), st.floats(0, 1), st.floats(0, 1), st.floats(1e-300, 1e300), st.integers(0, 2**64 - 1))
def test_whatever_passes_the_checks_has_a_row_state_in_range(
    temperature: float, top_p: float, min_p: float, repetition: float, seed: int
) -> None:
    checked = params(
        temperature=temperature, top_p=top_p, min_p=min_p, repetition_penalty=repetition, seed=seed
    )
    check_params(checked, vocab=100)
    state = row_sampling(checked, 1, 0)
    assert state.temperature == 0 or np.float32(state.temperature) >= np.float32(COLDEST)
    assert np.finfo(np.float32).tiny < np.float32(state.repetition_penalty) < np.inf
    assert {state.bias_ids.dtype, state.stop_ids.dtype} == {np.dtype(np.int32)}
    assert state.bias_values.dtype == np.float32
