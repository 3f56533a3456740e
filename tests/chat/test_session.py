"""A conversation over scripted tokens: what is asked, what is remembered, and what a typed line does."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from llmrs_cli.chat.session import Session
from llmrs_cli.engine import FinishReason, Request, TokenEvent
from llmrs_cli.errors import ContextLengthError, EngineFault
from llmrs_cli.text.generate import GenerateOptions
from tests.helpers.byte_tokenizer import CHAT_TEMPLATE, END_THINK, IM_END, THINK, byte_ids, piece_ids
from tests.helpers.fake_engine import FakeEngine, reply
from tests.helpers.talk import (
    Seen,
    engine_over,
    prompt_of,
    session_over,
    talk,
    talk_over,
    talk_through,
)

ABC, DE = piece_ids()["abc"], piece_ids()["de"]
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


# -- what is asked and remembered ---------------------------------------------------------------------


def test_a_conversation_grows_by_question_and_answer() -> None:
    session, fake = session_over(reply((ABC,), (IM_END,), finish=STOP), system="S")
    seen = talk(session, "one", "two")
    assert seen.answers == "abc\nabc\n"
    assert (
        prompt_of(fake, 0)
        == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n"
    )
    assert "one<|im_end|>\n<|im_start|>assistant\nabc<|im_end|>\n<|im_start|>user\ntwo" in prompt_of(fake, 1)


def test_thoughts_are_shown_apart_and_not_remembered() -> None:
    session, fake = session_over(reply((THINK, DE, END_THINK), (ABC,), (IM_END,), finish=STOP))
    seen = talk(session, "one", "two")
    assert (seen.thoughts, seen.answers) == ("dede", "abc\nabc\n")
    assert "de<" not in prompt_of(fake, 1)


def test_a_thought_that_the_prompt_opened() -> None:
    session, _ = session_over(
        reply((DE, END_THINK, ABC), (IM_END,), finish=STOP), template=CHAT_TEMPLATE + "<think>\n"
    )
    seen = talk(session, "one")
    assert (seen.thoughts, seen.answers) == ("de", "abc\n")


def test_special_tokens_in_a_question_are_plain_characters() -> None:
    session, fake = session_over(reply((ABC,), finish=STOP))
    talk(session, "<|im_end|>")
    ids = fake.requests[0].prompt_ids
    assert tuple(byte_ids("<|im_end|>")) == ids[len(byte_ids("user\n")) + 1 :][: len("<|im_end|>")]


def test_a_question_that_does_not_fit_is_an_error_and_changes_nothing() -> None:
    session, fake = session_over(reply((ABC,), finish=STOP), context=60)
    seen = talk(session, "one", "x" * 60, "two")
    assert len(fake.requests) == 2
    assert "x" not in prompt_of(fake, 1)
    assert len(seen.warnings) == 1
    assert "60" in seen.warnings[0]


def test_one_shot_callers_get_the_error_itself() -> None:
    session, _ = session_over(reply((ABC,), finish=STOP), context=30)
    with pytest.raises(ContextLengthError):
        session.ask("x" * 60, Seen())


def test_an_answer_cut_at_the_limit_is_told_and_kept() -> None:
    session, fake = session_over(reply((ABC,), (DE,), finish=LENGTH))
    seen = talk(session, "one", "two")
    assert "cut" in seen.warnings[0]
    assert "abcde<|im_end|>" in prompt_of(fake, 1)


def test_figures_of_every_answer() -> None:
    session, _ = session_over(reply((ABC,), (DE,), (IM_END,), finish=STOP))
    seen = talk(session, "one")
    assert seen.figures[0].startswith("3 tokens")
    assert "of 400" in seen.figures[0]


# -- Ctrl-C -------------------------------------------------------------------------------------------


def endless(request: Request) -> Iterator[TokenEvent]:
    while True:
        yield TokenEvent(request.id, (ABC,))


def test_an_interrupt_stops_the_answer_and_keeps_what_was_said() -> None:
    fake = FakeEngine(endless, context=400, at_once=False)
    session = Session(engine_over(fake), GenerateOptions())
    before = signal.getsignal(signal.SIGINT)

    class Stopping(Seen):
        """Presses Ctrl-C once the first word is on the screen."""

        def answer(self, text: str) -> None:
            super().answer(text)
            os.kill(os.getpid(), signal.SIGINT)
            fake.play()

        def working(self, text: str) -> AbstractContextManager[Any]:
            fake.play()
            return nullcontext()

    talking = talk_over(session)
    talking.screen = seen = Stopping()
    talk_through(talking, "one")
    assert seen.answers == "abc\n"
    assert any("stopped" in line for line in seen.said)
    assert session.last is not None
    assert session.last.finish is FinishReason.ABORT
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_on_an_empty_line_hints_and_a_second_one_leaves() -> None:
    session, _ = session_over(reply((ABC,), finish=STOP))
    talking = talk_over(session)
    with pytest.raises(KeyboardInterrupt):
        talk_through(talking, KeyboardInterrupt(), KeyboardInterrupt())
    assert isinstance(talking.screen, Seen)
    assert "Ctrl-D" in talking.screen.said[0]


def test_two_interrupts_far_apart_do_not_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 20.0, 30.0, 40.0, 50.0])
    monkeypatch.setattr("llmrs_cli.chat.repl.time.monotonic", lambda: next(now))
    session, _ = session_over(reply((ABC,), finish=STOP))
    talk(session, KeyboardInterrupt(), KeyboardInterrupt())


# -- commands -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["/bye", "/exit", "/quit"])
def test_leaving(line: str) -> None:
    session, fake = session_over(reply((ABC,), finish=STOP))
    talk(session, line, "never read")
    assert fake.requests == []


def test_clear_forgets_all_but_the_system_prompt() -> None:
    session, fake = session_over(reply((ABC,), finish=STOP), system="S")
    talk(session, "one", "/clear", "two")
    assert "one" not in prompt_of(fake, 1)
    assert "system\nS" in prompt_of(fake, 1)


def test_the_system_prompt_is_set_shown_and_removed() -> None:
    session, fake = session_over(reply((ABC,), finish=STOP))
    seen = talk(session, "/system", "/system Be brief.", "one", "/system", "/system off", "/clear", "two")
    assert seen.said[:3] == [
        "There is no system prompt.",
        "System prompt: Be brief.",
        "System prompt: Be brief.",
    ]
    assert "system\nBe brief." in prompt_of(fake, 0)
    assert "system" not in prompt_of(fake, 1)


def test_stats_and_help_answer_without_the_model() -> None:
    session, fake = session_over(reply((ABC,), finish=STOP))
    seen = talk(session, "/stats", "/help", "one", "/stats")
    assert seen.said[0] == "Nothing was said yet."
    assert "/system" in seen.said[1]
    assert seen.said[2] == seen.figures[0]
    assert len(fake.requests) == 1


def test_a_mistyped_command_is_told_and_the_conversation_goes_on() -> None:
    session, fake = session_over(reply((ABC,), finish=STOP))
    seen = talk(session, "/hepl", "", "//slash")
    assert "/help" in seen.warnings[0]
    assert "user\n/slash" in prompt_of(fake)


def test_a_broken_engine_ends_the_conversation() -> None:
    session, fake = session_over(reply((ABC,), finish=STOP))
    fake.fault = EngineFault("The engine failed.")
    with pytest.raises(EngineFault):
        talk(session, "one")
