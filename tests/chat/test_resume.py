"""An answer that is cut and goes on has the tokens and the text of one that was not, wherever it was cut."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llmrs_cli.chat.session import Session
from llmrs_cli.engine import FinishReason, Request, TokenEvent
from llmrs_cli.errors import UsageError
from llmrs_cli.text.generate import GenerateOptions, TextEngine
from tests.helpers.byte_tokenizer import END_THINK, IM_END, THINK, byte_ids, piece_ids
from tests.helpers.fake_engine import FakeEngine, Script
from tests.helpers.talk import Seen, engine_over, session_over
from tests.helpers.tiny_model import TinyModel, write_tiny

LENGTH = 12
"""Tokens of the uninterrupted answer."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextEngine]:
    """Random weights: what it says depends on every token and position before."""
    folder = write_tiny(tmp_path_factory.mktemp("tiny") / "model", TinyModel(context=128))
    with TextEngine.open(folder, device="reference", rows=1) as opened:
        yield opened


def session(engine: TextEngine, count: int, temperature: float) -> Session:
    options = GenerateOptions(max_tokens=count, temperature=temperature, seed=5, ignore_eos=True)
    return Session(engine, options, "S")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_cut_at_any_token_and_continued_is_the_same(engine: TextEngine, temperature: float) -> None:
    whole = session(engine, LENGTH, temperature).ask("Tell me.", Seen())
    for cut in range(1, LENGTH):
        talk = session(engine, cut, temperature)
        assert talk.ask("Tell me.", Seen()).ids == whole.ids[:cut]
        talk.options = session(engine, LENGTH - cut, temperature).options
        seen = Seen()
        shown = talk.resume(seen)
        assert shown.ids == whole.ids, f"cut after {cut}"
        assert talk.turns[-1].answer == whole.text == shown.text
        assert seen.recalled + seen.answers.removesuffix("\n") == whole.text


def test_it_can_go_on_again_and_again(engine: TextEngine) -> None:
    whole = session(engine, LENGTH, 0.0).ask("Tell me.", Seen())
    talk = session(engine, 1, 0.0)
    talk.ask("Tell me.", Seen())
    for _ in range(LENGTH - 1):
        talk.resume(Seen())
    assert talk.last_turn().ids == whole.ids


def test_a_saved_session_goes_on_from_its_tokens(engine: TextEngine) -> None:
    whole = session(engine, LENGTH, 0.0).ask("Tell me.", Seen())
    first = session(engine, 5, 0.0)
    first.ask("Tell me.", Seen())
    later = session(engine, LENGTH - 5, 0.0)
    later.take_up(first.conversation)
    assert later.resume(Seen()).ids == whole.ids


def test_it_goes_on_from_the_same_keys_and_values(engine: TextEngine) -> None:
    """All blocks of 16 tokens but the last are still there."""
    talk = session(engine, 40, 0.0)
    talk.ask("A question that is long enough to fill a block or two.", Seen())
    shown = talk.resume(Seen())
    before = shown.figures.prompt_tokens
    assert shown.figures.cached >= before - 2 * 16 > 0


ABC, DE = piece_ids()["abc"], piece_ids()["de"]
SMILE = byte_ids("😊")


def says(*tokens: int) -> Script:
    """A model that says `tokens`, going on wherever a prompt leaves off."""

    def script(request: Request) -> Iterator[TokenEvent]:
        prompt = request.prompt_ids
        done = next(n for n in range(len(tokens), -1, -1) if n == 0 or prompt[-n:] == tokens[:n])
        rest = tokens[done:][: request.params.max_tokens]
        for number, token in enumerate(rest, 1):
            last = FinishReason.STOP if token == IM_END else FinishReason.LENGTH
            yield TokenEvent(request.id, (token,), finish=last if number == len(rest) else None)

    return script


def talk_with(*tokens: int, cut: int, stop: tuple[str, ...] = ()) -> tuple[Session, FakeEngine]:
    fake = FakeEngine(says(*tokens), context=400)
    talk = Session(engine_over(fake), GenerateOptions(max_tokens=cut, stop=stop, temperature=0.0))
    talk.ask("Hi", Seen())
    talk.options = GenerateOptions(max_tokens=50, stop=stop, temperature=0.0)
    return talk, fake


@pytest.mark.parametrize("cut", range(1, 6))
def test_a_character_that_the_cut_went_through_comes_out_whole(cut: int) -> None:
    talk, _ = talk_with(ABC, *SMILE, IM_END, cut=cut)
    assert talk.resume(Seen()).text == "abc😊"


@pytest.mark.parametrize("cut", [1, 2])
def test_a_stop_string_that_the_cut_went_through_still_stops(cut: int) -> None:
    talk, fake = talk_with(ABC, DE, DE, IM_END, cut=cut, stop=("cded",))
    shown = talk.resume(Seen())
    assert (shown.text, shown.finish) == ("ab", FinishReason.STOP)
    assert not talk.last_turn().cut
    assert fake.requests[-1].prompt_ids[-cut:] == (ABC, DE)[:cut]


def test_a_thought_that_was_cut_goes_on_as_a_thought() -> None:
    talk, _ = talk_with(THINK, DE, DE, END_THINK, ABC, IM_END, cut=2)
    seen = Seen()
    shown = talk.resume(seen)
    assert (shown.thought, shown.text) == ("dede", "abc")
    assert (seen.thoughts, seen.answers) == ("de", "abc\n")


def test_an_answer_that_another_model_began_goes_on_from_its_text() -> None:
    talk, _ = talk_with(ABC, DE, IM_END, cut=1)
    other = FakeEngine(says(*byte_ids("abc"), DE, IM_END), context=400)
    talk.engine = engine_over(other)
    assert talk.resume(Seen()).text == "abcde"
    assert other.requests[0].prompt_ids[-3:] == tuple(byte_ids("abc"))


def test_what_ended_by_itself_is_not_continued() -> None:
    talk, _ = talk_with(ABC, IM_END, cut=5)
    with pytest.raises(UsageError, match="ended by itself"):
        talk.resume(Seen())
    empty, _ = session_over(says(ABC))
    with pytest.raises(UsageError, match="Nothing was said"):
        empty.resume(Seen())
