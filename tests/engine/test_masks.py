"""Answers under grammars in the engine: masks for the right rows at the right time, and nobody else slower."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine import masks
from llmrs_cli.engine.api import Engine, Grammars
from llmrs_cli.engine.masks import Masks
from llmrs_cli.engine.plan import StepPlan, StepResult
from llmrs_cli.engine.scheduler import Scheduler
from llmrs_cli.engine.types import FinishReason, Request, SamplingParams, TokenEvent
from llmrs_cli.errors import RequestError
from tests.helpers.drive import BLOCK, limits
from tests.helpers.fake_runner import VOCAB, FakeRunner

WORDS = -(-VOCAB // 32)


class Counting:
    """Allows the count of tokens taken so far; fails at the token it is told to."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.tokens: list[int] = []
        self._fails_at = fails_at

    def advance(self, token: int) -> None:
        if len(self.tokens) == self._fails_at:
            raise ValueError("no more")
        self.tokens.append(token)

    def mask(self) -> NDArray[np.uint32]:
        return np.full(WORDS, len(self.tokens), np.uint32)


class Halves(FakeRunner):
    """Keeps what was launched whole and what in halves."""

    def __init__(self) -> None:
        super().__init__(BLOCK)
        self.calls: list[str] = []
        self.masks: list[NDArray[np.uint32]] = []
        self.plans: list[StepPlan] = []
        self.strict = False
        """A row that may draw nothing fails, as on a device."""
        self._body: StepPlan | None = None

    def launch(self, plan: StepPlan) -> None:
        self.calls.append("whole")
        super().launch(plan)

    def launch_body(self, plan: StepPlan) -> None:
        self.calls.append("body")
        self._body = plan

    def launch_head(self, mask: NDArray[np.uint32]) -> None:
        self.calls.append("head")
        self.masks.append(mask)
        assert self._body is not None
        self.plans.append(self._body)
        sampling = [chunk for chunk in self._body.chunks if chunk.samples]
        self.poisoned |= {
            c.request_id for c, row in zip(sampling, mask, strict=True) if self.strict and not row.any()
        }
        super().launch(self._body)

    def collect(self) -> StepResult:
        self.calls.append("read")
        return super().collect()


def engine(runner: Halves, lookahead: int, matchers: dict[str, Counting]) -> Engine:
    grammars = Grammars(matchers.__getitem__, runner, Masks(VOCAB))
    return Engine(Scheduler(limits()), runner, vocab=VOCAB, lookahead=lookahead, grammars=grammars)


def ask(name: str, grammar: str = "", tokens: int = 4) -> Request:
    return Request(name, (1, 2, 3), SamplingParams(max_tokens=tokens, ignore_eos=True), grammar=grammar)


def submit(one: Engine, request: Request) -> None:
    one.submit(request, one.matcher(request))


def run(one: Engine) -> Iterator[TokenEvent]:
    while one.has_work:
        yield from one.step()


@pytest.mark.parametrize("lookahead", [0, 1])
def test_each_mask_follows_the_token_before(lookahead: int) -> None:
    runner, matcher = Halves(), Counting()
    one = engine(runner, lookahead, {"g": matcher})
    submit(one, ask("a", "g"))
    tokens = [token for event in run(one) for token in event.tokens]
    assert [int(mask[0, 0]) for mask in runner.masks] == [0, 1, 2, 3]
    assert matcher.tokens == tokens[:-1]  # the last one ends the answer: nothing follows it
    one.close()


@pytest.mark.parametrize("lookahead", [0, 1])
def test_rows_without_a_grammar_are_free(lookahead: int) -> None:
    runner = Halves()
    one = engine(runner, lookahead, {"g": Counting()})
    submit(one, ask("free"))
    submit(one, ask("bound", "g"))
    list(run(one))
    for plan, mask in zip(runner.plans, runner.masks, strict=True):
        chunks = [chunk for chunk in plan.chunks if chunk.samples]
        assert mask.shape == (len(chunks), WORDS)
        for chunk, row in zip(chunks, mask, strict=True):
            assert (row == 0xFFFFFFFF).all() == (chunk.request_id == "free")
    one.close()


@pytest.mark.parametrize("lookahead", [0, 1])
def test_steps_without_a_grammar_are_launched_whole(lookahead: int) -> None:
    runner = Halves()
    one = engine(runner, lookahead, {"g": Counting()})
    submit(one, ask("free"))
    list(run(one))
    submit(one, ask("bound", "g", 2))
    list(run(one))
    submit(one, ask("again"))
    list(run(one))
    assert runner.calls.count("body") == runner.calls.count("head") == 2
    assert runner.calls[-1] == "read"
    one.close()


def test_the_step_before_is_read_while_the_body_runs() -> None:
    runner = Halves()
    one = engine(runner, 1, {"g": Counting()})
    submit(one, ask("bound", "g", 3))
    list(run(one))
    assert runner.calls[:8] == ["body", "head", "body", "read", "head", "body", "read", "head"]
    one.close()


def test_the_answers_of_others_are_the_same_beside_a_grammar() -> None:
    def answers(beside: bool) -> list[int]:
        one = engine(Halves(), 1, {"g": Counting()})
        submit(one, ask("free"))
        if beside:
            submit(one, ask("bound", "g"))
        tokens = [token for event in run(one) if event.request_id == "free" for token in event.tokens]
        one.close()
        return tokens

    assert answers(beside=True) == answers(beside=False)


def test_a_matcher_that_fails_allows_nothing() -> None:
    runner = Halves()
    one = engine(runner, 0, {"g": Counting(fails_at=1)})
    submit(one, ask("bound", "g"))
    list(run(one))
    assert [int(mask.max()) for mask in runner.masks] == [0, 1, 0, 0]
    one.close()


@pytest.mark.parametrize("lookahead", [0, 1])
def test_an_answer_whose_form_failed_says_so_and_nobody_else_does(lookahead: int) -> None:
    runner = Halves()
    runner.strict = True

    class Open(Counting):
        def mask(self) -> NDArray[np.uint32]:
            return super().mask() + 1

    one = engine(runner, lookahead, {"g": Open(fails_at=2), "h": Open(), "i": Open()})
    runner.poisoned.add("sick")
    for request in (ask("bound", "g"), ask("good", "h"), ask("sick", "i")):
        submit(one, request)
    ends = {event.request_id: event for event in run(one) if event.finish is not None}
    assert (ends["bound"].finish, ends["bound"].error) == (FinishReason.ERROR, masks.FORM_FAULT)
    assert ends["bound"].code == "form_too_complex"
    assert ends["good"].finish is FinishReason.LENGTH
    assert ends["sick"].finish is FinishReason.ERROR
    assert ends["sick"].error != masks.FORM_FAULT
    one.close()


def test_a_mask_that_takes_too_long_is_waited_for_once_and_allows_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(masks, "PATIENCE", 0.01)
    runner, released = Halves(), threading.Event()

    class Slow(Counting):
        def mask(self) -> NDArray[np.uint32]:
            released.wait()
            return super().mask()

    one = engine(runner, 0, {"g": Slow()})
    submit(one, ask("free"))
    submit(one, ask("bound", "g", 1))
    events = list(run(one))
    assert {event.request_id for event in events if event.finish is FinishReason.LENGTH} == {"free", "bound"}
    (table,) = runner.masks
    assert sorted(int(row.max()) for row in table) == [0, 0xFFFFFFFF]
    released.set()
    one.close()


def test_an_aborted_request_is_followed_no_further() -> None:
    runner = Halves()
    one = engine(runner, 1, {"g": Counting()})
    submit(one, ask("bound", "g"))
    one.step()
    one.abort("bound")
    assert [event.finish for event in run(one)][-1] is FinishReason.ABORT
    assert not one.has_work
    one.close()


def test_an_engine_without_grammars_says_so() -> None:
    one = Engine(Scheduler(limits()), FakeRunner(BLOCK), vocab=VOCAB)
    assert one.matcher(ask("a")) is None
    with pytest.raises(RequestError) as error:
        one.matcher(ask("a", "g"))
    assert error.value.code == "unsupported"
