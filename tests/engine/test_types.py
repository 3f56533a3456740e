"""Parameters and limits: every bound, from both sides, in one sentence that names the field; and events joined into one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine.limits import EngineLimits, check_request
from llmrs_cli.engine.plan import Chunk, StepPlan
from llmrs_cli.engine.types import (
    BIAS_LIMIT,
    MAX_BIAS_ENTRIES,
    MAX_LOGPROBS,
    MAX_SEED,
    FinishReason,
    Request,
    SamplingParams,
    TokenEvent,
    TokenLogprob,
    check_params,
    entries,
    joined,
    split,
)
from llmrs_cli.errors import ContextLengthError, ExitCode, RequestError, UsageError

VOCAB = 100
LIMITS = EngineLimits(rows=4, context=32, blocks=8, block_size=4, busy_budget=8, idle_budget=16)


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 10, **changes})


# -- parameters ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given_params",
    [
        {},
        {"max_tokens": 1},
        {"min_tokens": 10},
        {"temperature": 2.0, "top_p": 0.0, "min_p": 1.0},
        {"top_k": 10**12},
        {"repetition_penalty": 1e-9},
        {"presence_penalty": -2.0, "frequency_penalty": 2.0},
        {"seed": MAX_SEED - 1},
        {"logit_bias": ((0, BIAS_LIMIT), (VOCAB - 1, -BIAS_LIMIT))},
        {"logit_bias": ((1, 0.0),) * MAX_BIAS_ENTRIES},
        {"stop_ids": (0, VOCAB - 1)},
        {"logprobs": 0, "prompt_logprobs": MAX_LOGPROBS},
    ],
)
def test_values_at_their_bounds_are_taken(given_params: dict[str, Any]) -> None:
    check_params(params(**given_params), VOCAB)


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("max_tokens", 0, "at least 1"),
        ("max_tokens", -5, "at least 1"),
        ("min_tokens", -1, "between 0 and max_tokens"),
        ("min_tokens", 11, "between 0 and max_tokens"),
        ("temperature", -0.1, "between 0 and 2"),
        ("temperature", 2.01, "between 0 and 2"),
        ("temperature", math.nan, "between 0 and 2"),
        ("top_k", -1, r"0 \(off\) or more"),
        ("top_p", 1.1, "between 0 and 1"),
        ("top_p", -math.inf, "between 0 and 1"),
        ("min_p", -0.5, "between 0 and 1"),
        ("repetition_penalty", 0.0, "a positive number"),
        ("repetition_penalty", math.inf, "a positive number"),
        ("presence_penalty", 2.5, "between -2 and 2"),
        ("frequency_penalty", -2.5, "between -2 and 2"),
        ("seed", -1, "an integer from 0"),
        ("seed", MAX_SEED, "an integer from 0"),
        ("logit_bias", ((VOCAB, 1.0),), "keyed by token ids from 0 to 99"),
        ("logit_bias", ((-1, 1.0),), "keyed by token ids"),
        ("logit_bias", ((1, 101.0),), "between -100 and 100"),
        ("logit_bias", ((1, math.nan),), "between -100 and 100"),
        ("logit_bias", ((1, 0.0),) * (MAX_BIAS_ENTRIES + 1), "at most 1024 entries"),
        ("stop_ids", (VOCAB,), "token ids from 0 to 99"),
        ("logprobs", 21, "between 0 and 20"),
        ("prompt_logprobs", -1, "between 0 and 20"),
    ],
)
def test_values_beyond_are_refused_by_name(field: str, value: Any, rule: str) -> None:
    name = "stop_token_ids" if field == "stop_ids" else field
    with pytest.raises(RequestError, match=f"^{name} must be {rule}") as caught:
        check_params(params(**{field: value}), VOCAB)
    assert caught.value.param == name
    assert caught.value.exit_code == ExitCode.USAGE
    assert caught.value.message.endswith(".")


NUMBERS = st.one_of(st.floats(), st.integers(-(10**6), 10**6))


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "temperature": NUMBERS,
            "top_p": NUMBERS,
            "min_p": NUMBERS,
            "repetition_penalty": NUMBERS,
            "presence_penalty": NUMBERS,
            "frequency_penalty": NUMBERS,
        },
    )
)
def test_no_number_gets_through_that_is_not_finite_and_in_range(numbers: dict[str, Any]) -> None:
    try:
        check_params(params(**numbers), VOCAB)
    except RequestError as error:
        assert error.param in numbers
        return
    assert all(math.isfinite(number) for number in numbers.values())
    assert 0 <= numbers.get("temperature", 0) <= 2
    assert numbers.get("repetition_penalty", 1) > 0
    assert all(0 <= numbers.get(name, 0) <= 1 for name in ("top_p", "min_p"))


# -- what one engine can serve -------------------------------------------------------------------------


def request(prompt: int, answer: int = 10, **changes: Any) -> Request:
    return Request("r", tuple(range(prompt)), params(max_tokens=answer, **changes))


@given(st.integers(1, 40), st.integers(1, 40))
def test_a_request_ends_where_it_said_or_where_the_context_does(prompt: int, answer: int) -> None:
    end = LIMITS.end_of(request(prompt, answer))
    assert end == min(prompt + answer, LIMITS.context)
    try:
        check_request(request(prompt, answer), LIMITS, VOCAB)
    except ContextLengthError as error:
        assert prompt >= LIMITS.context
        assert str(prompt) in error.message and str(LIMITS.context) in error.message
        return
    assert prompt < LIMITS.context


@given(st.integers(1, 30), st.integers(1, 40), st.integers(1, 8))
def test_a_request_needs_room_for_all_its_tokens_but_the_last(prompt: int, answer: int, blocks: int) -> None:
    limits = replace(LIMITS, blocks=blocks)
    needed = limits.end_of(request(prompt, answer)) - 1
    fits = needed <= limits.pool_tokens and prompt < limits.context
    try:
        limits.check(request(prompt, answer))
    except ContextLengthError as error:
        assert not fits
        assert error.hint is not None
        return
    assert fits


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        ((), "The prompt is empty: it needs at least one token."),
        ((1, -1), "The prompt holds token id -1; this model has ids from 0 to 99."),
        ((100, 5), "The prompt holds token id 100; this model has ids from 0 to 99."),
    ],
)
def test_a_prompt_that_is_none_is_refused(ids: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_request(Request("r", ids, params()), LIMITS, VOCAB)
    assert (caught.value.message, caught.value.param) == (sentence, "prompt")


@pytest.mark.parametrize("name", ["rows", "context", "blocks", "block_size"])
def test_an_engine_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"at least 1 for {name}, not 0"):
        replace(LIMITS, **{name: 0})


@pytest.mark.parametrize(("busy", "idle"), [(4, 16), (8, 7), (1, 1)])
def test_a_step_must_hold_a_token_of_every_row_and_one_more(busy: int, idle: int) -> None:
    with pytest.raises(UsageError, match=f"A step of {busy} tokens"):
        replace(LIMITS, busy_budget=busy, idle_budget=idle)


# -- values --------------------------------------------------------------------------------------------


EVENTS = st.lists(
    st.builds(
        lambda tokens, cached: TokenEvent(
            "r",
            tuple(tokens),
            tuple(TokenLogprob(token, -1.0) for token in tokens),
            cached_tokens=cached,
        ),
        st.lists(st.integers(0, 9), max_size=3),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=6,
)


@given(EVENTS)
def test_joined_events_are_one_that_says_all(events: list[TokenEvent]) -> None:
    events[-1] = events[-1]._replace(finish=FinishReason.ERROR, error="No.", code="numeric")
    whole = joined(events)
    assert whole.tokens == sum((event.tokens for event in events), ())
    assert len(whole.logprobs) == len(whole.tokens)
    assert (whole.finish, whole.error, whole.code) == (FinishReason.ERROR, "No.", "numeric")
    assert whole.cached_tokens == max(event.cached_tokens for event in events)


@given(EVENTS, st.data())
def test_events_may_be_joined_in_any_groups(events: list[TokenEvent], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(events)))
    groups = [part for part in (events[:cut], events[cut:]) if part]
    assert joined([joined(group) for group in groups]) == joined(events)


def test_scores_of_a_prompt_are_kept_from_whichever_event_has_them() -> None:
    scores = (None, TokenLogprob(1, -0.5))
    first = TokenEvent("r", (1,), prompt_logprobs=scores)
    assert joined([first, TokenEvent("r", (2,))]).prompt_logprobs == scores
    assert joined([TokenEvent("r"), TokenEvent("r", (2,))]).prompt_logprobs is None


@given(EVENTS, st.integers(0, 40), st.integers(0, 4), st.integers(1, 30))
def test_an_event_in_pieces_is_the_event(
    events: list[TokenEvent], length: int, width: int, most: int
) -> None:
    top = tuple((token, -2.0) for token in range(width))
    prompt = (None, *(TokenLogprob(token, -1.0, top) for token in range(length)))
    event = joined(events)._replace(prompt_logprobs=prompt, finish=FinishReason.STOP)
    pieces = split(event, most)
    assert joined(pieces) == event
    assert [piece.finish for piece in pieces] == [None] * (len(pieces) - 1) + [FinishReason.STOP]
    assert pieces[-1].tokens[-1:] == event.tokens[-1:]
    assert all(entries(piece) <= max(most, 1 + width) for piece in pieces)


def test_one_event_is_itself() -> None:
    event = TokenEvent("r", (1,))
    assert joined([event]) is event


def test_a_plan_counts_its_tokens() -> None:
    chunks = (Chunk("a", 0, 0, 5, False), Chunk("b", 1, 9, 1, True))
    assert StepPlan(1, (), (), chunks).tokens == 6
    assert StepPlan(1, (), (), ()).tokens == 0
