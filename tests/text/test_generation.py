"""Text out of scripted token events: what ends an answer, what is counted, and who is told of a fault.

Longer than most files: it is a list of small scripted cases over one fixture.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from queue import Empty
from typing import Any

import pytest

from llmrs_cli.engine import FinishReason, Request, TokenEvent, TokenLogprob
from llmrs_cli.errors import ContextLengthError, EngineFault, LlmrsError, ModelError, RequestError
from llmrs_cli.text.generate import GenerateOptions, Generation, TextEngine
from llmrs_cli.text.generation import TURN
from llmrs_cli.text.options import SamplingDefaults
from llmrs_cli.text.stream import StreamDecoder
from llmrs_cli.text.template import ChatTemplate
from llmrs_cli.text.tokenizer import Tokenizer
from tests.helpers.byte_tokenizer import IM_END, byte_ids, piece_ids
from tests.helpers.fake_engine import FakeEngine, Script, reply

PIECES = piece_ids()
ABC, DE = PIECES["abc"], PIECES["de"]
STOP, LENGTH, ABORT, ERROR = FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR


@pytest.fixture
def over(t_byte: Tokenizer) -> Any:
    """Make a TextEngine over a script."""

    def make(
        script: Script, tokenizer: Tokenizer | None = t_byte, **options: Any
    ) -> tuple[TextEngine, FakeEngine]:
        fake = FakeEngine(script, **options)
        engine = TextEngine(
            fake,
            tokenizer=tokenizer,
            template=ChatTemplate({}),
            defaults=SamplingDefaults(),
            eos_ids=(301, 2**20),
        )
        return engine, fake

    return make


def start(engine: TextEngine, **options: Any) -> Generation:
    return engine.start([1, 2, 3], GenerateOptions(**options))


def test_events_carry_text_as_it_becomes_certain_and_every_token(over: Any) -> None:
    engine, _ = over(reply((ABC,), (172,), (253, 246), (232, IM_END), finish=STOP))
    events = list(start(engine))
    assert [event.text for event in events] == ["abc", "", "", "😊"]
    assert [event.token_ids for event in events] == [(ABC,), (172,), (253, 246), (232, IM_END)]
    assert [event.finish_reason for event in events] == [None, None, None, STOP]
    assert [event.usage for event in events[:-1]] == [None] * 3
    usage = events[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 6, 9)


def test_the_result_is_the_sum_of_the_events(over: Any) -> None:
    engine, _ = over(reply((ABC,), (172,), (253, 246), (232, IM_END), finish=STOP))
    events, result = list(start(engine)), start(engine).result()
    assert result.choices[0].text == "".join(event.text for event in events) == "abc😊"
    assert result.choices[0].token_ids == sum((event.token_ids for event in events), ())
    assert result.choices[0].finish_reason == "stop"
    assert result.usage == events[-1].usage


def test_an_unfinished_character_comes_out_at_the_end(over: Any) -> None:
    engine, _ = over(reply((ABC,), (172, 253)))
    assert start(engine).result().choices[0].text == "abc\ufffd"


def test_the_end_token_of_a_caller_is_no_text_but_counts(over: Any) -> None:
    engine, fake = over(reply((ABC,), (DE,), finish=STOP))
    result = start(engine, stop_token_ids=(DE,)).result()
    assert result.choices[0].text == "abc"
    assert result.usage.completion_tokens == 2
    assert fake.requests[0].params.stop_ids == (301, IM_END, DE), "ids the model cannot draw are left out"


def test_a_stop_string_ends_the_answer_and_the_request(over: Any) -> None:
    engine, fake = over(reply((ABC,), (DE, ABC), (ABC,)), at_once=False)
    generation = start(engine, stop=("cd",))
    for _ in range(2):
        fake.play()
    events = list(generation)
    assert [event.text for event in events] == ["ab", ""]
    assert events[-1].finish_reason == STOP
    assert events[-1].token_ids == (DE,), "tokens after the one that completed the stop string are dropped"
    assert fake.aborted == [fake.requests[0].id]
    assert generation.result().usage.completion_tokens == 2


def test_a_stop_string_that_spells_a_control_token_is_its_id(over: Any) -> None:
    engine, fake = over(reply((ABC,), (302,), finish=STOP))
    assert start(engine, stop=("<|eom|>", "<think>")).result().choices[0].text == "abc"
    assert fake.requests[0].params.stop_ids == (301, IM_END, 302)


def test_the_stop_string_can_be_kept(over: Any) -> None:
    engine, _ = over(reply((ABC,), (DE,), (ABC,)))
    assert start(engine, stop=("cd",), include_stop=True).result().choices[0].text == "abcd"


def test_text_held_for_a_stop_string_comes_out_when_the_tokens_run_out(over: Any) -> None:
    for finish, last in ((LENGTH, DE), (STOP, IM_END), (ABORT, DE)):
        engine, _ = over(reply((ABC,), (DE,), (last,), finish=finish))
        text = start(engine, stop=("dex",)).result().choices[0].text
        assert text == ("abcde" if last == IM_END else "abcdede")


def test_the_minimum_defers_stop_strings(over: Any) -> None:
    engine, _ = over(reply((ABC,), (ABC, ABC), (ABC,)))
    result = start(engine, stop=("abc",), min_tokens=3).result().choices[0]
    assert result.text == "abcabc"
    assert result.token_ids == (ABC,) * 3


def test_choices_come_apart_again(over: Any) -> None:
    def script(request: Request) -> Iterator[TokenEvent]:
        yield TokenEvent(request.id, (byte_ids("xyz")[request.choice],), cached_tokens=request.choice)
        yield TokenEvent(request.id, (ABC,), finish=LENGTH)

    engine, fake = over(script, at_once=False)
    generation = start(engine, n=3, seed=7)
    for _ in range(2):
        fake.play()
    events = list(generation)
    assert [event.choice for event in events] == [0, 1, 2, 0, 1, 2]
    result = generation.result()
    assert [choice.text for choice in result.choices] == ["xabc", "yabc", "zabc"]
    assert result.usage.completion_tokens == 6
    assert (result.usage.prompt_tokens, result.usage.cached_tokens) == (3, 0)
    assert [event.usage is not None for event in events] == [False] * 5 + [True]
    assert {request.params.seed for request in fake.requests} == {7} == {generation.seed}
    assert len({request.id for request in fake.requests}) == 3


def test_log_probabilities_have_texts_and_exact_bytes(over: Any) -> None:
    def script(request: Request) -> Iterator[TokenEvent]:
        first = TokenLogprob(172, -0.5, ((172, -0.5), (253, -1.0)))
        prompt = (None, TokenLogprob(2, -3.0))
        yield TokenEvent(request.id, (172, ABC), (first, TokenLogprob(ABC, -0.1)), prompt, finish=LENGTH)

    engine, _ = over(script)
    result = start(engine, logprobs=2, prompt_logprobs=0).result()
    first, second = result.choices[0].logprobs
    assert (first.data, first.text, first.logprob) == (b"\xf0", "\ufffd", -0.5)
    assert [(top.token, top.data) for top in first.top] == [(172, b"\xf0"), (253, b"\x9f")]
    assert second.text == "abc"
    assert result.prompt_logprobs is not None
    assert [score and score.token for score in result.prompt_logprobs] == [None, 2]


def test_log_probabilities_end_with_the_token_that_completed_the_stop_string(over: Any) -> None:
    def script(request: Request) -> Iterator[TokenEvent]:
        scores = tuple(TokenLogprob(token, -1.0) for token in (ABC, DE, ABC))
        yield TokenEvent(request.id, (ABC, DE, ABC), scores)
        yield TokenEvent(request.id, (ABC,), scores[:1], finish=LENGTH)

    engine, _ = over(script)
    events = list(start(engine, stop=("cd",), logprobs=0))
    assert [score.token for event in events for score in event.logprobs] == [ABC, DE]
    choice = start(engine, stop=("cd",), logprobs=0).result().choices[0]
    assert len(choice.logprobs) == len(choice.token_ids) == 2


# -- faults, cancelling, closing ----------------------------------------------------------------------


def test_a_request_that_fails_raises_its_sentence_and_the_others_are_let_go(over: Any) -> None:
    def script(request: Request) -> Iterator[TokenEvent]:
        yield TokenEvent(request.id, (ABC,))
        if request.choice == 1:
            yield TokenEvent(request.id, finish=ERROR, error="The output was not a number.")
        while True:
            yield TokenEvent(request.id, (ABC,))

    engine, fake = over(script, at_once=False)
    generation = start(engine, n=2)
    for _ in range(2):
        fake.play()
    with pytest.raises(LlmrsError, match="not a number"):
        list(generation)
    assert fake.aborted == [fake.requests[0].id]
    with pytest.raises(LlmrsError, match="not a number"):
        generation.result()


def test_a_broken_engine_is_an_engine_fault(over: Any) -> None:
    engine, fake = over(lambda r: iter([TokenEvent(r.id, finish=ERROR, error="gone")]), at_once=False)
    generation = start(engine)
    fake.fault = EngineFault("The engine failed.")
    fake.play()
    with pytest.raises(EngineFault, match="failed"):
        generation.result()
    with pytest.raises(EngineFault, match="failed"):
        start(engine)


def test_a_fault_of_decoding_ends_that_request_alone(over: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, fake = over(reply((ABC,), (DE,), (ABC,)), at_once=False)
    broken, sound = start(engine), start(engine)

    def fail(*_: Any, **__: Any) -> str:
        raise ValueError("odd")

    monkeypatch.setattr(broken._choices[fake.requests[0].id]._decoder, "push", fail)
    for _ in range(3):
        fake.play()
    with pytest.raises(LlmrsError, match="could not be turned into text"):
        list(broken)
    assert fake.aborted == [fake.requests[0].id]
    assert sound.result().choices[0].text == "abcdeabc"


def test_leaving_the_loop_early_cancels(over: Any) -> None:
    engine, fake = over(reply((ABC,), (DE,), (ABC,)), at_once=False)
    generation = start(engine)
    fake.play()
    for event in generation:
        assert event.text == "abc"
        break
    assert fake.aborted == [fake.requests[0].id]
    fake.play()
    assert generation.result().choices[0].finish_reason == ABORT
    assert generation.result().choices[0].text == "abc"


def test_cancelling_keeps_what_was_said(over: Any) -> None:
    engine, fake = over(reply((ABC,), (DE,), (ABC,)), at_once=False)
    generation = start(engine)
    fake.play()
    generation.cancel()
    fake.play()
    result = generation.result()
    assert (result.choices[0].text, result.choices[0].finish_reason) == ("abc", ABORT)
    generation.cancel()
    assert fake.aborted == [fake.requests[0].id], "an ended generation has nothing to cancel"


def test_closing_the_engine_ends_what_runs(over: Any) -> None:
    engine, fake = over(reply((ABC,), (DE,)), at_once=False)
    with engine:
        generation = start(engine)
    assert fake.closed
    assert generation.result().choices[0].finish_reason == ABORT


def test_an_interrupt_reaches_a_waiting_consumer_and_cancels(over: Any) -> None:
    engine, fake = over(reply((ABC,), (DE,)), at_once=False)
    generation = start(engine)
    main = threading.main_thread().ident
    assert main is not None
    knock = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
    knock.start()
    with pytest.raises(KeyboardInterrupt):
        generation.result()
    knock.join()
    assert fake.aborted == [fake.requests[0].id]


def test_waiting_is_done_in_turns_so_that_no_interrupt_is_missed(over: Any) -> None:
    """A signal just before a wait does not end it; a wait without end would sleep on."""
    engine, _ = over(reply((ABC,)))
    generation = start(engine)
    events, turns = generation._events, []

    class Slow:
        """Nothing arrives in the first two turns."""

        def get(self, timeout: float) -> TokenEvent:
            turns.append(timeout)
            if len(turns) < 3:
                raise Empty
            return events.get(timeout=timeout)

    generation._events = Slow()  # type: ignore[assignment]
    assert generation.result().choices[0].text == "abc"
    assert turns[:3] == [TURN] * 3


def test_a_refused_choice_takes_back_the_others(over: Any) -> None:
    engine, fake = over(reply((ABC,), (DE,)), at_once=False)
    accept = fake.submit

    def refuse_second(request: Request, sink: Any) -> None:
        if request.choice == 1:
            raise EngineFault("no more")
        accept(request, sink)

    fake.submit = refuse_second
    with pytest.raises(EngineFault):
        start(engine, n=2)
    assert fake.requests[0].id in fake.aborted


# -- prompts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [64, 65, 200])
def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers(over: Any, length: int) -> None:
    engine, fake = over(reply((ABC,)))
    with pytest.raises(ContextLengthError, match=rf"{length} tokens.* 64") as error:
        engine.start([1] * length)
    assert (error.value.limit, error.value.prompt, error.value.code) == (
        64,
        length,
        "context_length_exceeded",
    )
    assert fake.requests == []


def test_more_tokens_than_fit_are_lowered_to_what_fits(over: Any) -> None:
    engine, fake = over(reply((ABC,)))
    for options in (GenerateOptions(max_tokens=1000), GenerateOptions()):
        engine.start([1] * 40, options)
    engine.start([1] * 63)
    assert [request.params.max_tokens for request in fake.requests] == [24, 24, 1]


def test_the_salt_of_a_request_reaches_the_engine(over: Any) -> None:
    engine, fake = over(reply((ABC,)))
    engine.start([1], salt="key")
    assert fake.requests[0].salt == "key"


def test_a_model_without_a_tokenizer_runs_on_ids(over: Any) -> None:
    engine, _ = over(reply((ABC,), (5,), finish=STOP), tokenizer=None)
    result = start(engine, logprobs=None).result()
    assert (result.choices[0].text, result.choices[0].token_ids) == ("", (ABC, 5))
    with pytest.raises(ModelError, match="no tokenizer"):
        engine.encode("hi")
    with pytest.raises(ModelError, match="no tokenizer"):
        engine.render([{"role": "user", "content": "hi"}])
    with pytest.raises(RequestError, match="no stop strings"):
        start(engine, stop=("x",))


def test_only_a_model_with_tokenizer_and_template_can_chat(over: Any, t_byte: Tokenizer) -> None:
    engine, fake = over(reply((ABC,)))
    assert not engine.can_chat
    for tokenizer in (t_byte, None):
        engine = TextEngine(
            fake, tokenizer=tokenizer, template=ChatTemplate({"default": "x"}), defaults=SamplingDefaults()
        )
        assert engine.can_chat == (tokenizer is not None)


def test_control_tokens_can_be_shown(over: Any) -> None:
    engine, _ = over(reply((ABC,), (302,), (DE,)))
    assert start(engine, specials=True).result().choices[0].text == "abc<|eom|>de"
    assert start(engine).result().choices[0].text == "abcde"


def test_a_decoder_is_never_shared_between_choices(t_byte: Tokenizer) -> None:
    engine = TextEngine(
        FakeEngine(reply((172,), (253,), (246,), (232,))),
        tokenizer=t_byte,
        template=ChatTemplate({}),
        defaults=SamplingDefaults(),
    )
    texts = [choice.text for choice in start(engine, n=2).result().choices]
    assert texts == ["😊", "😊"]
    assert StreamDecoder(t_byte).push([172]) == ""
