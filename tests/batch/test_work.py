"""Token events of one row: nobody is woken for a token, and joining them changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.batch.work import Events
from llmrs_cli.engine import FinishReason, TokenEvent, TokenLogprob
from llmrs_cli.engine.types import joined


def test_attention_is_called_for_once_when_the_answer_is_whole() -> None:
    calls: list[int] = []
    events = Events(lambda: calls.append(1), choices=2, eager=False)
    for token in range(100):
        events(TokenEvent("a", (token,)))
    events(TokenEvent("a", (100,), finish=FinishReason.STOP))
    assert calls == []
    events(TokenEvent("b", (1,), finish=FinishReason.LENGTH))
    assert calls == [1]
    first, second = events.take()
    assert (first.tokens, first.finish) == (tuple(range(101)), FinishReason.STOP)
    assert (second.tokens, second.finish) == ((1,), FinishReason.LENGTH)
    assert list(events.take()) == []


@pytest.mark.parametrize("eager", [True, False])
def test_a_row_with_stop_strings_is_looked_at_as_it_grows(eager: bool) -> None:
    calls: list[int] = []
    events = Events(lambda: calls.append(1), choices=1, eager=eager)
    events(TokenEvent("a", (1,)))
    events(TokenEvent("a", (2,)))
    assert len(calls) == (2 if eager else 0)


def test_a_fault_is_told_at_once() -> None:
    calls: list[int] = []
    events = Events(lambda: calls.append(1), choices=2, eager=False)
    events(TokenEvent("a", finish=FinishReason.ERROR, error="Odd."))
    assert calls == [1]


@given(st.lists(st.lists(st.integers(0, 99), max_size=3), min_size=1, max_size=6))
def test_joined_events_say_the_same(groups: list[list[int]]) -> None:
    events = [
        TokenEvent("a", tuple(group), tuple(TokenLogprob(token, -1.0) for token in group)) for group in groups
    ]
    events[0] = TokenEvent("a", events[0].tokens, events[0].logprobs, (None,), cached_tokens=3)
    events.append(TokenEvent("a", (), finish=FinishReason.ERROR, error="Odd."))
    whole = joined(events)
    assert whole.tokens == tuple(token for group in groups for token in group)
    assert tuple(score.token for score in whole.logprobs) == whole.tokens
    assert (whole.prompt_logprobs, whole.cached_tokens) == ((None,), 3)
    assert (whole.finish, whole.error) == (FinishReason.ERROR, "Odd.")
