"""What the engine counts: requests from their arrival to their end, tokens by kind, and the latest steps."""

from __future__ import annotations

import math
from dataclasses import fields
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine.plan import Chunk, StepPlan
from llmrs_cli.engine.stats import QUEUE_BOUNDS, RECENT_STEPS, EngineStats, Recorder, StepTiming
from llmrs_cli.engine.types import FinishReason, TokenEvent

STOP = FinishReason.STOP


def plan(*names: str, tokens: int = 1) -> StepPlan:
    return StepPlan(1, (), (), tuple(Chunk(name, 0, 0, tokens, True) for name in names))


def taken(recorder: Recorder, **now: int) -> EngineStats:
    state = {"running": 0, "waiting": 0, "blocks": 8, "blocks_used": 0, "preemptions": 0}
    return recorder.snapshot(**{**state, **now})


def timing(tokens: int = 1, **seconds: float) -> StepTiming:
    parts = {"plan": 0.0, "launch": 0.0, "wait": 0.0, "commit": 0.0}
    return StepTiming(tokens, 1, **{**parts, **seconds})


def test_an_engine_that_has_done_nothing_has_counted_nothing() -> None:
    stats = taken(Recorder(), running=3, waiting=2, blocks=9, blocks_used=4, preemptions=1)
    assert (stats.running, stats.waiting, stats.blocks, stats.blocks_used, stats.preemptions) == (
        3,
        2,
        9,
        4,
        1,
    )
    counted = {field.name for field in fields(EngineStats)} - {
        *("running", "waiting", "blocks", "blocks_used", "preemptions", "finished", "recent", "queued")
    }
    assert not any(stats.queued)
    assert all(getattr(stats, name) == 0 for name in counted)
    assert stats.finished == dict.fromkeys(FinishReason, 0)
    assert stats.recent == ()


def test_a_request_from_its_arrival_to_its_end() -> None:
    recorder = Recorder()
    recorder.submitted("a", 7, now=10.0)
    assert taken(recorder).requests == 1
    recorder.launched(plan("a"), now=10.5)
    stats = taken(recorder)
    assert (stats.started, stats.queue_seconds) == (1, 0.5)
    assert (stats.answered, stats.prompt_tokens) == (0, 0), "its prompt counts with its first token"
    recorder.gave([TokenEvent("a", (5,), cached_tokens=4)], now=12.0)
    stats = taken(recorder)
    assert (stats.answered, stats.first_token_seconds) == (1, 2.0)
    assert (stats.prompt_tokens, stats.cached_tokens, stats.generated_tokens) == (7, 4, 1)
    recorder.gave([TokenEvent("a", (6, 7), cached_tokens=4, finish=STOP)], now=13.0)
    stats = taken(recorder)
    assert (stats.generated_tokens, stats.finished[STOP]) == (3, 1)
    assert (stats.prompt_tokens, stats.answered) == (7, 1), "counted once"


def test_a_request_that_is_launched_again_has_started_once() -> None:
    recorder = Recorder()
    recorder.submitted("a", 7, now=0.0)
    for now in (1.0, 2.0, 3.0):
        recorder.launched(plan("a"), now)
    assert (taken(recorder).started, taken(recorder).queue_seconds) == (1, 1.0)


@given(st.lists(st.floats(0, 1000), max_size=20))
def test_waits_are_counted_by_class(waits: list[float]) -> None:
    recorder = Recorder()
    for number, wait in enumerate(waits):
        recorder.submitted(str(number), 1, now=0.0)
        recorder.launched(plan(str(number)), wait)
    told = list(accumulate(taken(recorder).queued))
    assert told == [sum(wait <= bound for wait in waits) for bound in (*QUEUE_BOUNDS, math.inf)]


def test_a_request_that_ends_without_a_token_was_never_answered() -> None:
    recorder = Recorder()
    recorder.submitted("a", 7, now=0.0)
    recorder.gave([TokenEvent("a", finish=FinishReason.ABORT)], now=1.0)
    stats = taken(recorder)
    assert (stats.answered, stats.prompt_tokens, stats.first_token_seconds) == (0, 0, 0.0)
    assert stats.finished[FinishReason.ABORT] == 1
    recorder.launched(plan("a"), now=2.0)
    assert taken(recorder).started == 0, "it is forgotten"


def test_a_name_that_is_used_again_is_another_request() -> None:
    recorder = Recorder()
    for now in (0.0, 10.0):
        recorder.submitted("a", 3, now)
        recorder.launched(plan("a"), now + 1)
        recorder.gave([TokenEvent("a", (1,), finish=STOP)], now + 2)
    stats = taken(recorder)
    assert (stats.requests, stats.started, stats.answered) == (2, 2, 2)
    assert (stats.queue_seconds, stats.first_token_seconds) == (2.0, 4.0)


def test_events_of_requests_that_nobody_announced_count_their_tokens() -> None:
    recorder = Recorder()
    recorder.gave([TokenEvent("x", (1, 2))], now=1.0)
    recorder.launched(plan("x"), now=1.0)
    assert (taken(recorder).generated_tokens, taken(recorder).answered) == (2, 0)


def test_steps_that_computed_nothing_are_no_steps() -> None:
    recorder = Recorder()
    for tokens in (5, 0, 3):
        recorder.stepped(timing(tokens))
    stats = taken(recorder)
    assert (stats.steps, stats.computed_tokens, len(stats.recent)) == (2, 8, 3)


def test_the_latest_steps_are_kept_oldest_first() -> None:
    recorder = Recorder()
    for number in range(RECENT_STEPS + 10):
        recorder.stepped(timing(number + 1))
    recent = taken(recorder).recent
    assert [step.tokens for step in recent] == list(range(11, RECENT_STEPS + 11))
    assert taken(recorder).steps == RECENT_STEPS + 10


def test_a_step_takes_the_sum_of_its_parts() -> None:
    assert timing(plan=1.0, launch=2.0, wait=4.0, commit=8.0).total == 15.0


def test_what_was_taken_does_not_change_afterwards() -> None:
    recorder = Recorder()
    recorder.submitted("a", 1, now=0.0)
    before = taken(recorder)
    recorder.gave([TokenEvent("a", (1,), finish=STOP)], now=1.0)
    recorder.stepped(timing())
    assert (before.generated_tokens, before.finished[STOP], before.recent) == (0, 0, ())


LIVES = st.lists(
    st.tuples(
        st.integers(1, 50),  # prompt
        st.integers(0, 5),  # answer
        st.integers(0, 50),  # cached
        st.sampled_from([STOP, FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR]),
    ),
    max_size=12,
)


@given(LIVES, st.randoms(use_true_random=False))
def test_totals_are_those_of_the_requests_in_any_order_of_events(lives: list[Any], random: Any) -> None:
    recorder = Recorder()
    ready = []
    for number, (prompt, answer, cached, finish) in enumerate(lives):
        recorder.submitted(f"r{number}", prompt, now=0.0)
        tokens: list[TokenEvent] = [
            TokenEvent(
                f"r{number}", (1,), cached_tokens=cached, finish=finish if last == answer - 1 else None
            )
            for last in range(answer)
        ] or [TokenEvent(f"r{number}", finish=finish)]
        ready.append(tokens)
    while left := [events for events in ready if events]:
        recorder.gave([random.choice(left).pop(0)], now=1.0)
    stats = taken(recorder)
    spoke = [life for life in lives if life[1]]
    assert stats.requests == len(lives)
    assert stats.generated_tokens == sum(answer for _, answer, _, _ in lives)
    assert stats.prompt_tokens == sum(prompt for prompt, _, _, _ in spoke)
    assert stats.cached_tokens == sum(cached for _, _, cached, _ in spoke)
    assert (stats.answered, stats.first_token_seconds) == (len(spoke), float(len(spoke)))
    for reason in FinishReason:
        assert stats.finished[reason] == sum(life[3] is reason for life in lives)


@pytest.mark.parametrize("finish", list(FinishReason))
def test_every_way_to_end_is_counted(finish: FinishReason) -> None:
    recorder = Recorder()
    recorder.submitted("a", 1, now=0.0)
    recorder.gave([TokenEvent("a", finish=finish)], now=0.0)
    assert {reason: n for reason, n in taken(recorder).finished.items() if n} == {finish: 1}
