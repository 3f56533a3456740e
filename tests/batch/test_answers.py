"""A row's way through the engine: its events, what came of it, and the answer in each shape."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.batch.answers import answer_for
from llmrs_cli.batch.delivery import Record
from llmrs_cli.batch.job import Counts, row_seed
from llmrs_cli.batch.records import Ask, Row, Shape
from llmrs_cli.batch.results import Answer
from llmrs_cli.batch.work import Events, Work
from llmrs_cli.engine import FinishReason, TokenEvent
from llmrs_cli.errors import GenerationError, RequestError
from llmrs_cli.text.events import ChoiceResult, GenerationResult, LogProb, Usage
from llmrs_cli.text.generate import GenerateOptions, TextEngine
from llmrs_cli.text.options import SamplingDefaults
from llmrs_cli.text.template import ChatTemplate
from llmrs_cli.text.tokenizer import Tokenizer
from tests.helpers.byte_tokenizer import byte_tokenizer_json
from tests.helpers.fake_engine import FakeEngine, Script, reply

A = LogProb(64, "a", b"a", -0.5, (LogProb(65, "b", b"b", -1.0),))


def result(*choices: ChoiceResult, prompt: int = 4) -> GenerationResult:
    tokens = sum(len(choice.token_ids) for choice in choices)
    return GenerationResult(choices, Usage(prompt, tokens, cached_tokens=3))


def choice(
    text: str = "a", ids: tuple[int, ...] = (64,), reason: FinishReason = FinishReason.STOP, **more: Any
) -> ChoiceResult:
    return ChoiceResult(text, ids, reason, **more)


@pytest.mark.parametrize("shape", list(Shape))
def test_an_answer_says_what_the_engine_said(shape: Shape) -> None:
    found = answer_for(shape, result(choice(), choice("bc", (65, 66), FinishReason.LENGTH)))
    assert [(c.text, c.token_ids, c.finish_reason) for c in found.choices] == [
        ("a", (64,), "stop"),
        ("bc", (65, 66), "length"),
    ]
    assert (found.prompt_tokens, found.cached_tokens, found.completion_tokens) == (4, 3, 3)
    assert found.usage == {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}
    assert not found.is_json


@pytest.mark.parametrize("shape", list(Shape))
def test_log_probabilities_are_there_where_they_were_asked_for(shape: Shape) -> None:
    without, scored = answer_for(shape, result(choice(), choice(logprobs=(A,)))).choices
    assert without.logprobs is None
    assert "a" in json.dumps(scored.logprobs)


# -- a row on its way ----------------------------------------------------------------------------------


ENGINE_TOKENIZER = Tokenizer(byte_tokenizer_json())


def started(script: Script, *, eager: bool = False, n: int = 1) -> tuple[Work, FakeEngine, list[int]]:
    """A row in an engine that plays its script, and how often it called."""
    calls: list[int] = []
    fake = FakeEngine(script, at_once=False)
    engine = TextEngine(
        fake, tokenizer=ENGINE_TOKENIZER, template=ChatTemplate({}), defaults=SamplingDefaults()
    )
    work = Work(0, Row(0, 1, Shape.FLAT, {}, {}, Ask(text="x")))
    work.events = Events(lambda: calls.append(1), choices=n, eager=eager)
    options = GenerateOptions(max_tokens=9, n=n, temperature=0.0)
    work.generation = engine.start((1, 2), options, sink=work.events)
    return work, fake, calls


def play(work: Work, engine: FakeEngine) -> None:
    while engine.busy:
        engine.play()
    work.advance()


def test_a_row_has_a_result_when_all_of_it_came() -> None:
    work, engine, calls = started(reply((64,), (65, 66)))
    engine.play()
    work.advance()
    assert work.answer is None and calls == []
    play(work, engine)
    assert isinstance(work.result, GenerationResult)
    assert work.result.choices[0].token_ids == (64, 65, 66)
    assert calls == [1]
    assert not work.aborted
    assert work.answer is work.result


def test_several_choices_are_one_result() -> None:
    work, engine, calls = started(reply((64,), (65,)), n=3)
    play(work, engine)
    assert isinstance(work.result, GenerationResult)
    assert len(work.result.choices) == 3
    assert calls == [1]


def test_a_row_that_is_cancelled_is_aborted_and_no_answer() -> None:
    work, engine, _ = started(reply((64,), (65,), (66,)))
    engine.play()
    work.cancel()
    play(work, engine)
    assert work.aborted
    assert work.answer is None


def test_a_row_that_is_not_in_the_engine_has_nothing_to_cancel() -> None:
    work = Work(0, Row(0, 1, Shape.FLAT, {}, {}, Ask(text="x")))
    work.cancel()
    assert not work.aborted


def test_a_row_that_was_refused_is_its_error_in_every_shape() -> None:
    error = RequestError("No.", code="no_prompt")
    work = Work(0, Row(0, 1, Shape.FLAT, {}, {}, error), result=error)
    assert all(work.outcome_for(shape) is error for shape in Shape)
    assert work.answer is None and not work.aborted


def test_a_row_that_the_engine_gives_up_is_told_at_once_and_why() -> None:
    def broken(request: Any) -> Any:
        yield TokenEvent(request.id, finish=FinishReason.ERROR, error="Gone.")

    work, engine, calls = started(broken)
    engine.play()
    assert calls == [1]
    with pytest.raises(GenerationError, match="Gone"):
        work.advance()


@pytest.mark.parametrize("as_json", [False, True])
def test_an_answer_that_was_held_to_json_says_so(as_json: bool) -> None:
    work = Work(0, Row(0, 1, Shape.FLAT, {}, {}, Ask(text="x")), result=result(choice("{}")))
    found = work.outcome_for(Shape.FLAT, as_json=as_json)
    assert isinstance(found, Answer) and found.is_json is as_json


EVENTS = st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 9), max_size=3)), max_size=20)


@given(EVENTS, st.sets(st.integers(0, 20)))
def test_events_come_out_once_however_often_somebody_looks(
    events: list[tuple[str, list[int]]], looks: set[int]
) -> None:
    sink = Events(lambda: None, choices=3, eager=False)
    found: dict[str, list[int]] = {}

    def look() -> None:
        for event in sink.take():
            found.setdefault(event.request_id, []).extend(event.tokens)

    for place, (name, tokens) in enumerate(events):
        sink(TokenEvent(name, tuple(tokens)))
        if place in looks:
            look()
    look()
    for name in found:
        assert found[name] == [token for other, tokens in events if other == name for token in tokens]
    assert set(found) == {name for name, _ in events}


# -- counts and seeds ----------------------------------------------------------------------------------


RECORDS = st.builds(
    Record,
    number=st.integers(0, 99),
    digest=st.just("00"),
    failed=st.booleans(),
    prompt_tokens=st.integers(0, 999),
    completion_tokens=st.integers(0, 999),
    line=st.just("{}"),
)


@given(st.lists(st.tuples(RECORDS, st.booleans()), max_size=20))
def test_counts_are_sums_in_any_order(records: list[tuple[Record, bool]]) -> None:
    def total(of: Callable[[Record], int]) -> int:
        return sum(of(record) for record, _ in records)

    counts = Counts()
    for record, merged in reversed(records):
        counts = counts.plus(record, merged=merged)
    assert counts == Counts(
        len(records),
        total(lambda record: record.failed),
        total(lambda record: record.prompt_tokens),
        total(lambda record: record.completion_tokens),
        sum(merged for _, merged in records),
    )


@given(st.integers(0, 2**64 - 1), st.integers(0, 10**9), st.integers(0, 10**9))
def test_rows_have_seeds_of_their_own_that_repeat(seed: int, one: int, two: int) -> None:
    assert 0 <= row_seed(seed, one) < 2**64
    assert (row_seed(seed, one) == row_seed(seed, two)) is (one == two)
    assert row_seed(seed, one) != row_seed(seed ^ 1, one)


def test_the_seed_of_a_row_stays_what_it_is() -> None:
    """A changed one is a changed answer to an old command."""
    assert [row_seed(7, index) for index in (0, 1)] == [14254637482812893, 16966735830609695309]
