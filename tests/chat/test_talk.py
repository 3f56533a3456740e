"""A talk with its session on disk: what is said after an answer, figures, names, and a conversation that is taken up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.chat.answer import Figures, Shown
from llmrs_cli.chat.conversation import Conversation, Turn
from llmrs_cli.chat.fitting import Overflow, exchanges, first_that_fits
from llmrs_cli.chat.summary import REQUEST, SHARE, NoRoomError, sum_up
from llmrs_cli.chat.talk import Talk
from llmrs_cli.engine import FinishReason, Request, TokenEvent
from llmrs_cli.errors import LlmrsError, ModelError, UsageError
from tests.helpers.byte_tokenizer import IM_END, byte_ids
from tests.helpers.fake_engine import FakeEngine, reply
from tests.helpers.talk import Seen, engine_over, prompt_of, session_over, talk_over, talk_through

STOP, LENGTH, ABORT = FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT
HI = reply((*byte_ids("hi"), IM_END), finish=STOP)
FIGURES = Figures(prompt_tokens=10, tokens=5, first=0.1, total=0.5)


def ended(finish: FinishReason, used: int = 15) -> Shown:
    return Shown("text", finish, replace(FIGURES, prompt_tokens=used - 5))


@pytest.fixture
def talk(tmp_path: Path) -> Talk:
    return talk_over(session_over(HI)[0], tmp_path, "mine")


def screen(talk: Talk) -> Seen:
    assert isinstance(talk.screen, Seen)
    return talk.screen


# -- after an answer -----------------------------------------------------------------------------------


def test_an_answer_that_ended_by_itself_says_nothing_but_its_figures(talk: Talk) -> None:
    talk.finish(ended(STOP))
    assert screen(talk).said == [] and screen(talk).warnings == []
    assert screen(talk).figures == [talk.line(FIGURES)]


def test_an_answer_that_was_stopped_can_go_on(talk: Talk) -> None:
    talk.finish(ended(ABORT))
    assert screen(talk).said == ["[stopped; the answer so far is kept, /continue goes on]"]
    assert screen(talk).warnings == []


def test_an_answer_that_was_cut_says_by_what(talk: Talk) -> None:
    talk.finish(ended(LENGTH))
    talk.finish(ended(LENGTH, used=400))
    limit, full = screen(talk).warnings
    assert limit == "The answer was cut: the token limit. /continue goes on."
    assert full == "The answer was cut: the context of 400 tokens is full. --ctx gives more room."


def test_figures_are_shown_unless_they_are_not_wanted(talk: Talk) -> None:
    talk.show_stats = False
    talk.finish(ended(STOP))
    assert screen(talk).figures == []


@given(
    st.integers(0, 10**6),
    st.integers(0, 10**5),
    st.floats(0, 100),
    st.just(0.0) | st.floats(1e-6, 100),
    st.integers(1, 10**6),
)
def test_figures_hang_together(prompt: int, tokens: int, first: float, after: float, context: int) -> None:
    figures = Figures(prompt, tokens, first, first + after)
    assert figures.used == prompt + tokens
    assert prompt <= figures.mean_length <= figures.used
    assert (figures.rate is None) is (tokens < 2 or figures.total <= first)
    if figures.rate is not None:
        assert figures.rate * (figures.total - first) == pytest.approx(tokens - 1)
    line = figures.line(context)
    assert line.startswith(f"{tokens} tokens")
    assert f"context {figures.used} of {context}" in line
    assert "reused" not in line and "%" in line


# -- names and files -----------------------------------------------------------------------------------


def test_nothing_is_saved_before_anything_was_said(talk: Talk, tmp_path: Path) -> None:
    talk.save()
    assert list(tmp_path.iterdir()) == []
    talk_through(talk, "a")
    assert talk.store.names() == ("mine",)


def test_a_new_conversation_leaves_the_old_one_under_its_name(talk: Talk) -> None:
    talk_through(talk, "a")
    talk.begin_anew()
    assert talk.name != "mine" and talk.session.turns == ()
    talk_through(talk, "b")
    assert set(talk.store.names()) == {"mine", talk.name}
    assert talk.store.load("mine").conversation.turns[0].question == "a"


def test_without_a_name_a_new_conversation_has_none() -> None:
    talk = talk_over(session_over(HI)[0])
    talk.begin_anew()
    assert talk.name is None


def test_another_name_takes_the_file_along(talk: Talk) -> None:
    talk_through(talk, "a")
    talk.rename("yours")
    assert (talk.name, talk.store.names()) == ("yours", ("yours",))
    talk.rename("yours")
    assert talk.store.names() == ("yours",)


def test_a_name_that_another_session_has_is_refused_and_nothing_changes(talk: Talk) -> None:
    talk_through(talk, "a")
    talk.store.save("taken", "m", Conversation(None, (Turn("q", "a"),)))
    with pytest.raises(UsageError, match="'taken' already"):
        talk.rename("taken")
    assert talk.name == "mine"
    talk.name = None
    with pytest.raises(UsageError, match="'taken' already"):
        talk.rename("taken")
    assert talk.store.load("taken").conversation.turns[0].question == "q"


def test_a_session_that_was_not_saved_is_from_its_name_on(talk: Talk) -> None:
    talk.name = None
    talk_through(talk, "a")
    assert talk.store.names() == ()
    talk.rename("now")
    assert talk.store.load("now").conversation == talk.session.conversation


def test_a_session_that_is_not_there_leaves_everything_as_it_was(talk: Talk) -> None:
    talk_through(talk, "a")
    before = talk.session.conversation
    with pytest.raises(ModelError, match="no session 'gone'"):
        talk.load("gone")
    assert (talk.name, talk.session.conversation) == ("mine", before)


def test_a_session_that_is_loaded_is_saved_under_its_own_name(talk: Talk) -> None:
    talk.store.save("old", talk.model, Conversation("S", (Turn("q", "a"), Turn("r", "b"))))
    assert talk.load("old") == 2
    talk_through(talk, "c")
    assert len(talk.store.load("old").conversation.turns) == 3
    assert talk.session.system == "S"


def test_options_of_the_next_answers_change_one_by_one(talk: Talk) -> None:
    talk.set_option(temperature=0.5)
    talk.set_option(seed=3)
    assert (talk.session.options.temperature, talk.session.options.seed) == (0.5, 3)
    with pytest.raises(TypeError):
        talk.set_option(colour="red")


# -- summaries -----------------------------------------------------------------------------------------


def conversation(*questions: str, **more: object) -> Conversation:
    return replace(Conversation("S", tuple(Turn(q, "answer") for q in questions)), **more)  # type: ignore[arg-type]


def test_a_summary_is_asked_for_behind_what_it_stands_for() -> None:
    fake = FakeEngine(reply((*byte_ids(" They met. "), IM_END), finish=STOP), context=1000)
    found = sum_up(engine_over(fake), conversation("one", "two", "three"), 2, Seen())
    assert (found.summary, found.summed, len(found.turns)) == ("They met.", 2, 3)
    prompt = prompt_of(fake)
    assert REQUEST in prompt and "one" in prompt and "two" in prompt and "three" not in prompt
    assert prompt.index("two") < prompt.index(REQUEST)
    params = fake.requests[0].params
    assert (params.max_tokens, params.temperature) == (1000 // SHARE, 0.0)


def test_an_earlier_summary_is_summed_up_with_the_rest() -> None:
    fake = FakeEngine(reply((*byte_ids("All."), IM_END), finish=STOP), context=1000)
    before = conversation("one", "two", summary="Earlier.", summed=1)
    found = sum_up(engine_over(fake), before, 2, Seen())
    assert (found.summary, found.summed) == ("All.", 2)
    assert "Earlier." in prompt_of(fake) and "one" not in prompt_of(fake)


def test_turns_that_do_not_fit_are_missed_and_it_is_said() -> None:
    fake = FakeEngine(reply((*byte_ids("Short."), IM_END), finish=STOP), context=600)
    seen = Seen()
    found = sum_up(engine_over(fake), conversation("a" * 200, "b" * 200, "c" * 20), 3, seen)
    assert found.summed == 3
    assert seen.warnings == ["The summary misses the oldest 1: they fill the context."]
    assert "aaa" not in prompt_of(fake) and "bbb" in prompt_of(fake)


def test_one_turn_that_leaves_no_room_is_an_error() -> None:
    fake = FakeEngine(HI, context=300)
    with pytest.raises(NoRoomError, match="fills the context of 300 tokens"):
        sum_up(engine_over(fake), conversation("a" * 400), 1, Seen())
    assert fake.requests == []


@pytest.mark.parametrize(
    ("answer", "finish", "part"),
    [
        ("  ", STOP, "gave no summary"),
        ("half", ABORT, "was stopped"),
        ("<think>hm", LENGTH, "gave no summary"),
    ],
)
def test_no_summary_is_an_error_and_says_that_nothing_changed(
    answer: str, finish: FinishReason, part: str
) -> None:
    def script(request: Request) -> Iterator[TokenEvent]:
        yield TokenEvent(request.id, tuple(byte_ids(answer)), finish=finish)

    with pytest.raises(LlmrsError, match=part) as caught:
        sum_up(engine_over(FakeEngine(script, context=1000)), conversation("one"), 1, Seen())
    assert caught.value.hint == "The conversation is as it was."


# -- what fits -----------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(0, 400), st.data())
def test_the_first_turn_from_which_a_prompt_fits(sizes: list[int], limit: int, data: st.DataObject) -> None:
    last = len(sizes)
    first = data.draw(st.integers(0, last - 1))
    asked: list[int] = []

    def tokens(start: int) -> int:
        asked.append(start)
        return sum(sizes[start:])

    found = first_that_fits(first, last, tokens, limit)
    fitting = [start for start in range(first + 1, last) if sum(sizes[start:]) <= limit]
    assert found == (fitting[0] if fitting else last)
    assert len(asked) <= last.bit_length() + 1, "each look renders a whole prompt"


@pytest.mark.parametrize(("count", "text"), [(0, "0 exchanges"), (1, "1 exchange"), (2, "2 exchanges")])
def test_exchanges_are_counted_in_words(count: int, text: str) -> None:
    assert exchanges(count) == text


@pytest.mark.parametrize("overflow", list(Overflow))
def test_room_can_be_made_only_where_there_is_something_to_leave_out(overflow: Overflow) -> None:
    session, _ = session_over(HI, overflow=overflow)
    assert not session.can_make_room
    for question in ("a", "b"):
        session.ask(question, Seen())
    assert session.can_make_room is (overflow is not Overflow.ERROR)
