"""Answers under grammars in the engine: masks for the right rows at the right time, and nobody else slower.

Nothing here takes time: masks are computed when a test says so (`Hand`), and what is counted is steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmrs_cli.engine import masks
from llmrs_cli.engine.api import Engine, Grammars
from llmrs_cli.engine.masks import Masks
from llmrs_cli.engine.plan import StepPlan, StepResult
from llmrs_cli.engine.scheduler import Scheduler
from llmrs_cli.engine.types import FORM, FinishReason, Request, SamplingParams, TokenEvent
from llmrs_cli.errors import RequestError
from tests.helpers.drive import BLOCK, limits
from tests.helpers.fake_runner import VOCAB, FakeRunner, solo

WORDS = -(-VOCAB // 32)


class Hand(Executor):
    """Computes a mask at once, or when told to."""

    def __init__(self) -> None:
        self.at_once = True
        self._left: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._left.append((future, lambda: fn(*args, **kwargs)))
        if self.at_once:
            self.work()
        return future

    def work(self, most: int = 1000) -> None:
        """Compute what is asked for, oldest first."""
        for _ in range(min(most, len(self._left))):
            future, call = self._left.pop(0)
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except Exception as error:
                future.set_exception(error)


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
        """A row that may draw nothing fails, and draws nothing, as on a device."""
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
        nothing = {c.request_id for c, row in zip(sampling, mask, strict=True) if not row.any()}
        self.silent = nothing if self.strict else ()
        super().launch(self._body)

    def collect(self) -> StepResult:
        self.calls.append("read")
        return super().collect()


def engine(runner: Halves, lookahead: int, matchers: dict[str, Counting], hand: Hand | None = None) -> Engine:
    """`hand` computes masks; without one they are always in time."""
    masks = Masks(VOCAB)
    masks._pools = [hand or Hand()] * 3
    grammars = Grammars(matchers.__getitem__, runner, masks)
    return Engine(Scheduler(limits()), runner, vocab=VOCAB, lookahead=lookahead, grammars=grammars)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No head waits, and no engine sleeps: in these tests nothing comes while it does."""
    monkeypatch.setattr(masks, "GRACE", 0)
    monkeypatch.setattr(masks, "PAUSE", 0)


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


class Open(Counting):
    """Allows something, always."""

    def mask(self) -> NDArray[np.uint32]:
        return super().mask() + 1


def tokens_of(events: list[TokenEvent], name: str) -> list[int]:
    return [token for event in events if event.request_id == name for token in event.tokens]


def solo_tokens(request: Request) -> list[int]:
    return solo(request, limits().context)[0]


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_mask_that_does_not_come_keeps_nobody_else_from_a_single_step(lookahead: int) -> None:
    runner, hand = Halves(), Hand()
    runner.strict, hand.at_once = True, False
    one = engine(runner, lookahead, {"g": Open()}, hand)
    free, bound = ask("free", tokens=20), ask("bound", "g", 6)
    submit(one, free)
    submit(one, bound)
    events: list[TokenEvent] = []
    while tokens_of(events, "free") != solo_tokens(free):
        assert len(runner.log) <= 20, "a step without a token of the one that waits for nothing"
        events += one.step()
    assert tokens_of(events, "bound") == []
    assert sum(chunk.request_id == "bound" for plan in runner.log for chunk in plan.chunks) == 1
    hand.at_once = True
    hand.work()
    assert tokens_of(events + list(run(one)), "bound") == solo_tokens(bound)
    one.close()


@pytest.mark.parametrize("lookahead", [0, 1])
def test_an_engine_that_only_waits_for_masks_computes_nothing(lookahead: int) -> None:
    runner, hand = Halves(), Hand()
    runner.strict, hand.at_once = True, False
    one = engine(runner, lookahead, {"g": Open()}, hand)
    submit(one, ask("bound", "g", 3))
    for _ in range(10):
        assert one.step() == []
    assert len(runner.log) == 1
    assert one.has_work
    hand.work()
    assert one.step() == [] or lookahead == 0
    assert len(runner.log) == 2
    hand.at_once = True
    hand.work()
    assert tokens_of(list(run(one)), "bound")[-1:] == solo_tokens(ask("bound", "g", 3))[-1:]
    one.close()


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_row_whose_masks_are_always_late_is_waited_for_ever_more_rarely(lookahead: int) -> None:
    """Each mask comes only after a step that could not have it; a head lacks it a logarithm of times."""
    runner, hand = Halves(), Hand()
    runner.strict, hand.at_once = True, False
    one = engine(runner, lookahead, {"g": Open()}, hand)
    free, bound = ask("free", tokens=35), ask("bound", "g", 12)
    submit(one, free)
    submit(one, bound)
    events = []
    while one.has_work:
        events += one.step()
        hand.work()
    assert [tokens_of(events, name.id) for name in (free, bound)] == [solo_tokens(free), solo_tokens(bound)]
    late = sum(not row.any() for mask in runner.masks for row in mask)
    assert (
        late == 1 + lookahead
    )  # after four tokens it is waited for once more, if a step is planned without its mask
    one.close()


@pytest.mark.parametrize("lookahead", [0, 1])
@given(
    absences=st.lists(st.integers(0, 3), max_size=60),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4),
)
def test_however_late_masks_are_every_answer_is_what_it_is_alone(
    lookahead: int, absences: list[int], lengths: list[int]
) -> None:
    runner, hand = Halves(), Hand()
    runner.strict, hand.at_once = True, False
    matchers = {f"g{number}": Open() for number in range(len(lengths))}
    one = engine(runner, lookahead, dict(matchers), hand)
    requests = [ask(f"r{n}", f"g{n}", length) for n, length in enumerate(lengths)] + [ask("free", tokens=20)]
    for each in requests:
        submit(one, each)
    events = []
    for most in absences:
        if one.has_work:
            hand.work(most)
            events += one.step()
            one.check()
    hand.at_once = True
    hand.work()
    events += list(run(one))
    for each in requests:
        assert tokens_of(events, each.id) == solo_tokens(each)
    for number in range(len(lengths)):
        assert matchers[f"g{number}"].tokens == solo_tokens(requests[number])[:-1]
    one.close()


@pytest.mark.parametrize("lookahead", [0, 1])
def test_an_answer_whose_masks_take_too_long_in_all_ends_with_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch, lookahead: int
) -> None:
    runner = Halves()
    runner.strict = True

    class Dear(Open):
        def mask(self) -> NDArray[np.uint32]:
            if len(self.tokens) == 3:
                monkeypatch.setattr(masks, "BUDGET", -1.0)
            return super().mask()

    one = engine(runner, lookahead, {"g": Dear()})
    submit(one, ask("free", tokens=9))
    submit(one, ask("bound", "g", 9))
    events = list(run(one))
    ends = {event.request_id: event for event in events if event.finish is not None}
    assert (ends["bound"].finish, ends["bound"].code) == (FinishReason.ERROR, FORM)
    assert tokens_of(events, "bound") == solo_tokens(ask("bound"))[:3]
    assert tokens_of(events, "free") == solo_tokens(ask("free", tokens=9))
    one.close()


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_mask_that_never_comes_ends_its_answer(lookahead: int) -> None:
    runner, hand = Halves(), Hand()
    runner.strict, hand.at_once = True, False
    one = engine(runner, lookahead, {"g": Open()}, hand)
    submit(one, ask("bound", "g"))
    submit(one, ask("free", tokens=9))
    events = one.step() + one.step()
    assert one._grammars is not None
    one._grammars.masks._ways["bound"].began = 1e-9  # long ago
    events += list(run(one))
    ends = {event.request_id: event for event in events if event.finish is not None}
    assert (ends["bound"].finish, ends["bound"].code) == (FinishReason.ERROR, FORM)
    assert tokens_of(events, "free") == solo_tokens(ask("free", tokens=9))
    one.close()


def test_what_was_late_is_computed_apart_and_what_is_dear_last(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Counted(Hand):
        def __init__(self, number: int) -> None:
            super().__init__()
            self._number = number

        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            asked.append(self._number)
            return super().submit(fn, *args, **kwargs)

    hands = [Counted(number) for number in range(3)]
    runner = Halves()
    runner.strict, hands[0].at_once = True, False
    one = engine(runner, 0, {"g": Open()})
    assert one._grammars is not None
    one._grammars.masks._pools = [*hands]
    submit(one, ask("bound", "g", 4))
    one.step()  # late
    hands[0].work()
    one.step()
    assert asked == [0, 1]
    monkeypatch.setattr(masks, "DEAR", -1.0)
    list(run(one))
    assert asked == [0, 1, 2, 2]
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
