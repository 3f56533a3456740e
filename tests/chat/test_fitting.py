"""A conversation that outgrows its context: refused, its oldest turns left out, or summed up; always said."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.chat.fitting import Overflow, first_that_fits
from llmrs_cli.engine import FinishReason, Request, TokenEvent
from llmrs_cli.errors import ContextLengthError, LlmrsError
from tests.helpers.byte_tokenizer import IM_END, piece_ids
from tests.helpers.fake_engine import FakeEngine, reply
from tests.helpers.talk import Seen, engine_over, prompt_of, session_over, talk

ABC, DE = piece_ids()["abc"], piece_ids()["de"]
STOP = FinishReason.STOP
SHORT = reply((ABC,), (IM_END,), finish=STOP)
QUESTIONS = ["q1" * 20, "q2" * 20, "q3" * 20, "q4" * 20, "q5" * 20]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(1, 300))
def test_no_turn_is_left_out_that_would_fit(sizes: list[int], limit: int) -> None:
    def tokens(first: int) -> int:
        return 5 + sum(sizes[first:])

    first = first_that_fits(0, len(sizes), tokens, limit)
    assert 1 <= first <= len(sizes)
    assert tokens(first) <= limit or first == len(sizes)
    assert first == 1 or tokens(first - 1) > limit


def test_error_refuses_and_keeps_the_conversation() -> None:
    session, fake = session_over(SHORT, context=200)
    seen = talk(session, *QUESTIONS)
    assert "200" in seen.warnings[0]
    assert len(session.turns) == len(fake.requests) < len(QUESTIONS)


def test_oldest_leaves_out_and_says_what() -> None:
    session, fake = session_over(SHORT, context=250, overflow=Overflow.OLDEST, system="S")
    seen = talk(session, *QUESTIONS)
    assert len(session.turns) == 5, "nothing is forgotten, only not sent"
    assert "no longer sent" in seen.warnings[0]
    assert "250" in seen.warnings[0]
    last = prompt_of(fake)
    assert "q5" in last and "system\nS" in last
    assert "q1" not in last
    assert all(len(request.prompt_ids) <= 250 for request in fake.requests)


def test_what_is_left_out_stays_out_so_that_prompts_share_their_beginning() -> None:
    session, fake = session_over(SHORT, context=250, overflow=Overflow.OLDEST)
    seen = talk(session, *QUESTIONS, "x", "y")
    first = [prompt_of(fake, index).split("user\n")[1][:2] for index in range(len(fake.requests))]
    assert first == sorted(first)
    assert len(seen.warnings) == len(set(first)) - 1, "each change is said once, and only a change"


def test_a_question_that_is_too_long_by_itself_is_refused_whatever_is_left_out() -> None:
    session, _ = session_over(SHORT, context=250, overflow=Overflow.OLDEST)
    session.ask("one", Seen())
    with pytest.raises(ContextLengthError):
        session.ask("x" * 300, Seen())
    assert len(session.turns) == 1


def summing(request: Request) -> Iterator[TokenEvent]:
    """Answers "abc"; a request for a summary gets "de"."""
    asked = len(request.prompt_ids) > 150 and request.params.max_tokens > 8
    for token in (DE if asked else ABC, IM_END):
        yield TokenEvent(request.id, (token,), finish=STOP if token == IM_END else None)


def test_summarize_puts_a_summary_in_their_place() -> None:
    session, fake = session_over(summing, context=600, overflow=Overflow.SUMMARIZE)
    seen = talk(session, *(question * 3 for question in QUESTIONS))
    assert "summed up" in seen.warnings[0]
    assert session.conversation.summary == "de"
    assert "Summary of the conversation so far:\nde" in prompt_of(fake)
    assert "q1" not in prompt_of(fake)
    assert len(session.turns) == 5


def test_compact_sums_up_everything_and_says_what_it_gained() -> None:
    session, fake = session_over(summing, context=1000)
    seen = talk(session, *QUESTIONS[:2], "/compact", "more")
    assert seen.said[0].startswith("2 exchanges summed up: ")
    before, after = (int(number) for number in re.findall(r"\d+", seen.said[0])[1:3])
    assert before > after
    assert "q1" not in prompt_of(fake)
    assert "de" in prompt_of(fake) and "more" in prompt_of(fake)


@pytest.mark.parametrize("line", ["/undo", "/regen"])
def test_what_a_summary_stood_for_comes_back_when_its_last_turn_goes(line: str) -> None:
    session, fake = session_over(summing, context=1000)
    talk(session, *QUESTIONS[:2], "/compact", line, "more")
    assert session.conversation.summary is None
    assert "q1" in prompt_of(fake)


def test_turns_that_were_summed_up_to_make_room_come_back_too() -> None:
    session, fake = session_over(summing, context=600, overflow=Overflow.SUMMARIZE)
    talk(session, *(question * 3 for question in QUESTIONS))
    summed = session.conversation.summed
    assert summed > 0
    talk(session, f"/undo {len(session.turns) - summed + 1}", "more")
    assert session.conversation.summary is None
    assert "q1" in prompt_of(fake)


def test_a_summary_that_is_empty_changes_nothing() -> None:
    session, _ = session_over(SHORT, context=1000)
    session.ask("one", Seen())
    before = session.conversation
    session.engine = engine_over(FakeEngine(reply((IM_END,), finish=STOP), context=1000))
    with pytest.raises(LlmrsError, match="no summary"):
        session.compact(Seen())
    assert session.conversation == before


def endless(request: Request) -> Iterator[TokenEvent]:
    """An answer as long as it may be."""
    for number in range(request.params.max_tokens):
        last = number == request.params.max_tokens - 1
        yield TokenEvent(request.id, (ABC,), finish=FinishReason.LENGTH if last else None)


def test_one_exchange_that_fills_the_context_can_be_left_out_but_neither_summed_up_nor_continued() -> None:
    session, fake = session_over(endless, context=300, overflow=Overflow.SUMMARIZE, max_tokens=None)
    seen = talk(session, "q1", "/continue", "/compact")
    assert "the context of 300 tokens is full. --ctx gives more room." in seen.warnings[0]
    assert "it cannot go on" in seen.warnings[1]
    assert "no room to sum it up" in seen.warnings[2]
    assert (len(seen.warnings), len(fake.requests), len(session.turns)) == (3, 1, 1)
    seen = talk(session, "q2")
    assert "no room to sum it up" in seen.warnings[0]
    assert "no longer sent: the oldest 1 exchange of 1" in seen.warnings[1]
    assert "q1" not in prompt_of(fake) and "q2" in prompt_of(fake)
    assert "/continue" not in seen.warnings[2], "of what is sent nothing is left to leave out"


def test_where_room_can_be_made_the_way_on_is_named() -> None:
    session, _ = session_over(endless, context=300, overflow=Overflow.OLDEST, max_tokens=50)
    talk(session, "q1")
    session.options = replace(session.options, max_tokens=None)
    assert "is full. /continue goes on." in talk(session, "q2").warnings[0]


@pytest.mark.parametrize("overflow", [Overflow.OLDEST, Overflow.SUMMARIZE])
def test_nothing_is_left_out_for_a_question_that_will_not_fit_anyway(overflow: Overflow) -> None:
    session, fake = session_over(SHORT, context=250, overflow=overflow)
    seen = talk(session, "one", "x" * 300, "two")
    (refused,) = seen.warnings
    assert "250" in refused and "/compact and /undo make room" in refused
    assert "one" in prompt_of(fake)


def test_a_full_context_makes_room_before_an_answer_goes_on() -> None:
    session, fake = session_over(endless, context=400, overflow=Overflow.OLDEST, max_tokens=50)
    seen = talk(session, "q1" * 20, "q2" * 20)
    while session.used < session.context:
        session.resume(seen)
    assert not any("no longer sent" in line for line in seen.warnings)
    session.resume(seen)
    assert any("no longer sent" in line for line in seen.warnings)
    assert "q1" not in prompt_of(fake)
