"""Loads of requests: what is drawn, what is submitted when, what is said of it, and an error that ends it."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.bench.client import Answer, Ask, Run, asks, percentile, random_prompt, serve
from llmrs_cli.engine.types import FinishReason, Request, TokenEvent
from llmrs_cli.errors import EngineFault

Sink = Callable[[TokenEvent], None]


class Scripted:
    """An engine that gives each request its events before `submit` returns."""

    def __init__(self, *events: tuple[int, FinishReason | None, str | None], cached: int = 0) -> None:
        """(number of tokens, how it ends, with which error) each."""
        self.events = events
        self.cached = cached
        self.requests: list[Request] = []

    def submit(self, request: Request, sink: Sink) -> None:
        self.requests.append(request)
        for count, finish, error in self.events:
            sink(TokenEvent(request.id, (7,) * count, cached_tokens=self.cached, finish=finish, error=error))


def run(engine: Scripted, *work: Ask, **sampling: float) -> Run:
    standing_in: Any = engine
    return serve(standing_in, work, **sampling)


WHOLE = (1, None, None), (2, FinishReason.LENGTH, None)


def test_every_token_of_an_event_has_a_time() -> None:
    found = run(Scripted(*WHOLE, cached=5), Ask((1, 2), 3), Ask((4,), 3))
    assert [len(answer.times) for answer in found.answers] == [3, 3]
    assert [answer.cached for answer in found.answers] == [5, 5]
    assert found.tokens == 6
    first = found.answers[0]
    assert first.times[1] == first.times[2], "tokens of one event come at once"


def test_requests_are_run_to_their_length_whatever_is_drawn() -> None:
    engine = Scripted(*WHOLE)
    run(engine, Ask((1, 2), 3), Ask((4,), 9))
    assert [request.prompt_ids for request in engine.requests] == [(1, 2), (4,)]
    assert [request.params.max_tokens for request in engine.requests] == [3, 9]
    assert all(request.params.ignore_eos for request in engine.requests)
    assert all(request.params.temperature == 0 for request in engine.requests)


def test_requests_have_names_and_seeds_of_their_own_over_all_loads() -> None:
    engine = Scripted(*WHOLE)
    for _ in range(3):
        run(engine, Ask((1,), 3), Ask((1,), 3))
    assert len({request.id for request in engine.requests}) == 6
    assert len({request.params.seed for request in engine.requests}) == 6


def test_sampling_is_handed_on() -> None:
    engine = Scripted(*WHOLE)
    run(engine, Ask((1,), 3), temperature=0.8, top_p=0.95)
    params = engine.requests[0].params
    assert (params.temperature, params.top_p) == (0.8, 0.95)


def test_the_first_error_ends_the_load_with_its_sentence() -> None:
    failing = Scripted((1, None, None), (0, FinishReason.ERROR, "The GPU fell off the bus."))
    with pytest.raises(EngineFault, match=r"^The GPU fell off the bus\.$"):
        run(failing, Ask((1,), 3), Ask((2,), 3))


def test_an_error_is_told_only_when_every_request_has_ended() -> None:
    engine = Scripted((0, FinishReason.ERROR, "No."))
    with pytest.raises(EngineFault):
        run(engine, Ask((1,), 3), Ask((2,), 3, at=0.02))
    assert len(engine.requests) == 2


def test_a_request_that_is_late_already_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    clock = iter(float(n) for n in range(100))
    monkeypatch.setattr(
        "llmrs_cli.bench.client.time",
        SimpleNamespace(perf_counter=lambda: next(clock), sleep=slept.append),
    )
    run(Scripted(*WHOLE), Ask((1,), 3, at=0.5), Ask((2,), 3, at=50.0))
    assert len(slept) == 1
    assert 0 < slept[0] < 50


def test_the_load_takes_as_long_as_all_of_it() -> None:
    began = time.perf_counter()
    found = run(Scripted(*WHOLE), Ask((1,), 3), Ask((1,), 3, at=0.03))
    assert 0.03 <= found.seconds <= time.perf_counter() - began
    assert found.rate == pytest.approx(6 / found.seconds)


@given(st.integers(1, 500), st.integers(0, 20), st.integers(1, 40), st.integers(1, 9), st.integers(0, 99))
def test_prompts_are_of_the_length_and_the_vocabulary_asked_for(
    vocab: int, number: int, length: int, answer: int, seed: int
) -> None:
    work = asks(np.random.default_rng(seed), vocab, number, length, answer)
    assert len(work) == number
    assert all(len(ask.prompt) == length and ask.answer == answer and ask.at == 0 for ask in work)
    assert all(0 <= token < vocab for ask in work for token in ask.prompt)


def test_no_two_prompts_of_a_load_begin_alike() -> None:
    work = asks(np.random.default_rng(0), 1000, 50, 64, 1)
    assert len({ask.prompt[:16] for ask in work}) == 50


def test_a_prompt_is_plain_numbers_that_json_and_hashes_take() -> None:
    ids = random_prompt(np.random.default_rng(0), 100, 5)
    assert isinstance(ids, tuple)
    assert {type(token) for token in ids} == {int}


SECONDS = st.floats(0, 1e4, allow_nan=False)


@given(st.lists(SECONDS, min_size=1), st.floats(0, 1))
def test_a_percentile_lies_between_the_values_it_parts(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert min(values) <= found <= max(values)
    below = sum(value <= found * (1 + 1e-12) for value in values)
    assert below >= int(share * (len(values) - 1)) + 1


@given(st.lists(SECONDS, min_size=1), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_gives_no_smaller_value(values: list[float], one: float, two: float) -> None:
    low, high = sorted((one, two))
    assert percentile(values, low) <= percentile(values, high) * (1 + 1e-12)


@given(st.lists(SECONDS, min_size=1))
def test_percentiles_end_at_the_least_and_the_greatest(values: list[float]) -> None:
    assert percentile(iter(values), 0) == min(values)
    assert percentile(iter(values), 1) == max(values)


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    submitted = draw(SECONDS)
    waits = draw(st.lists(st.floats(0, 10), min_size=1, max_size=6))
    return Answer(submitted, (submitted + np.cumsum(waits)).tolist())


@given(st.lists(answers(), min_size=1, max_size=8), st.floats(0.1, 100))
def test_figures_of_a_run_hang_together(given_answers: list[Answer], seconds: float) -> None:
    found = Run(given_answers, seconds)
    assert found.rate * seconds == pytest.approx(found.tokens)
    firsts = sorted(answer.first for answer in given_answers)
    assert firsts[0] <= found.first <= firsts[-1]
    for answer in given_answers:
        gaps = list(answer.gaps)
        assert len(gaps) == len(answer.times) - 1
        assert all(gap >= 0 for gap in gaps)
        assert answer.first + sum(gaps) == pytest.approx(answer.times[-1] - answer.submitted, abs=1e-6)
