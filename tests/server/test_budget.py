"""What one request may ask for in all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.errors import RequestError
from llmrs_cli.server.budget import CONTEXTS, MAX_SCORES, within_budget, within_scores
from llmrs_cli.text.generate import GenerateOptions

COUNTS = st.none() | st.integers(0, 20)
TOKENS = st.none() | st.integers(1, 40_000)


def test_answers_share_four_contexts() -> None:
    assert within_budget(GenerateOptions(n=8), 100).max_tokens == 50
    assert within_budget(GenerateOptions(n=4), 100).max_tokens is None
    assert within_budget(GenerateOptions(n=4, max_tokens=10**9), 100).max_tokens == 10**9
    with pytest.raises(RequestError, match="400"):
        within_budget(GenerateOptions(n=8, max_tokens=51), 100)


def test_answers_to_several_prompts_share_them_too() -> None:
    assert within_budget(GenerateOptions(max_tokens=128), 2048, 64).max_tokens == 128
    assert within_budget(GenerateOptions(n=2), 2048, 32).max_tokens == 128
    with pytest.raises(RequestError, match="8192"):
        within_budget(GenerateOptions(max_tokens=2000), 2048, 64)


@given(st.integers(1, 8), st.integers(1, 64), TOKENS, st.integers(8, 10_000))
def test_no_more_is_generated_than_fits(n: int, prompts: int, tokens: int | None, context: int) -> None:
    try:
        found = within_budget(GenerateOptions(n=n, max_tokens=tokens), context, prompts)
    except RequestError as error:
        assert error.param == "max_tokens"
        assert tokens is not None
    else:
        most = min(found.max_tokens or context, context)
        assert n * prompts * most <= max(CONTEXTS * context, n * prompts)
        assert tokens in (None, found.max_tokens)


@given(st.integers(1, 8), st.lists(st.integers(1, 9_000), min_size=1, max_size=64), TOKENS, COUNTS, COUNTS)
def test_no_more_is_scored_than_may_be(
    n: int, lengths: list[int], tokens: int | None, own: int | None, prompt: int | None
) -> None:
    context = 10_000
    options = GenerateOptions(n=n, max_tokens=tokens, logprobs=own, prompt_logprobs=prompt)

    def scores(most: int) -> int:
        of_prompts = 0 if prompt is None else sum(lengths) * (1 + prompt)
        of_answers = 0 if own is None else sum(min(most, context - length) * (1 + own) for length in lengths)
        return n * (of_prompts + of_answers)

    try:
        found = within_scores(options, lengths, context)
    except RequestError as error:
        assert error.param in ("logprobs", "prompt_logprobs")
        longest = max(min(tokens or 1, context - length) for length in lengths)
        assert n * len(lengths) * longest * (1 + (own or 0)) + scores(0) > MAX_SCORES
    else:
        assert scores(found.max_tokens or context) <= MAX_SCORES
        assert tokens in (None, found.max_tokens)


def test_what_nobody_asked_for_is_lowered_and_what_was_is_refused() -> None:
    assert within_scores(GenerateOptions(logprobs=20), [10], 100_000).max_tokens == MAX_SCORES // 21
    assert within_scores(GenerateOptions(logprobs=20), [10], 2048).max_tokens is None
    with pytest.raises(RequestError, match="420,000 log-probabilities; a request may have 262,144"):
        within_scores(GenerateOptions(logprobs=20, max_tokens=20_000), [10], 100_000)
    with pytest.raises(RequestError, match="a request may have 262,144"):
        within_scores(GenerateOptions(prompt_logprobs=5), [2040] * 64, 2048)
