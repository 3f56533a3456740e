"""The engine over a fake runner: what it refuses, how it ends requests, and how it breaks.

Longer than most files: every promise of the public interface stands in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import llmrs_cli.engine
from llmrs_cli.engine.api import Engine
from llmrs_cli.engine.plan import StepPlan, StepResult
from llmrs_cli.engine.scheduler import Scheduler
from llmrs_cli.engine.types import FinishReason, Request, SamplingParams, TokenEvent
from llmrs_cli.errors import ContextLengthError, EngineFault, RequestError
from tests.helpers.drive import BLOCK, limits, request
from tests.helpers.fake_runner import VOCAB, FakeRunner, solo


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def engine(lookahead: int = 0, runner: FakeRunner | None = None, **sizes: int) -> Engine:
    runner = runner or FakeRunner(BLOCK)
    return Engine(Scheduler(limits(**sizes)), runner, vocab=VOCAB, lookahead=lookahead, release=runner.close)


def drain(engine: Engine, most: int = 1000) -> list[TokenEvent]:
    """All events until there is no work."""
    events: list[TokenEvent] = []
    for _ in range(most):
        if not engine.has_work:
            engine.check()
            return events
        events += engine.step()
    raise AssertionError("the engine does not come to rest")


def tokens(events: list[TokenEvent], name: str) -> list[int]:
    return [token for event in events if event.request_id == name for token in event.tokens]


def ends(events: list[TokenEvent]) -> dict[str, FinishReason]:
    """Finish of each request; a second one is an error."""
    found: dict[str, FinishReason] = {}
    for event in events:
        assert event.request_id not in found, f"an event after the end: {event}"
        if event.finish is not None:
            found[event.request_id] = event.finish
    return found


@pytest.mark.parametrize("name", llmrs_cli.engine.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(llmrs_cli.engine, name).__name__ == name


def test_there_are_no_other_public_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        _ = llmrs_cli.engine.Motor


# -- serving ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lookahead", [0, 1])
def test_requests_are_served_together_and_each_as_if_alone(lookahead: int) -> None:
    e = engine(lookahead)
    requests = [request(f"r{n}", range(n % 5 + 1), max_tokens=3 + n % 4, seed=n) for n in range(9)]
    for each in requests:
        e.submit(each)
    events = drain(e)
    for each in requests:
        assert tokens(events, each.id) == solo(each, 40)[0]
    assert set(ends(events).values()) == {FinishReason.LENGTH}


def test_without_lookahead_a_step_gives_its_own_tokens() -> None:
    e = engine()
    e.submit(request("a", [1], max_tokens=2))
    assert [len(e.step()), len(e.step()), e.has_work] == [1, 1, False]


def test_with_lookahead_results_are_read_one_step_behind() -> None:
    runner = FakeRunner(BLOCK)
    e = engine(1, runner)
    e.submit(request("a", [1], max_tokens=2))
    assert e.step() == [] and len(runner.log) == 1
    assert len(e.step()) == 1 and len(runner.log) == 2
    assert len(e.step()) == 1 and len(runner.log) == 2
    assert not e.has_work


def test_with_lookahead_the_extra_step_of_a_stopped_row_is_read_before_the_engine_rests() -> None:
    e = engine(1)
    e.submit(request("a", [1], max_tokens=9, stop_ids=tuple(range(VOCAB))))
    assert ends(e.step() + e.step()) == {"a": FinishReason.STOP}
    assert e.has_work
    assert e.step() == [] and not e.has_work


def test_an_idle_engine_does_nothing() -> None:
    e = engine()
    assert not e.has_work and e.step() == []


# -- refusing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "error", "sentence"),
    [
        (request("a", []), RequestError, "prompt is empty"),
        (request("a", [1, VOCAB, 2]), RequestError, rf"token id {VOCAB}; .* from 0 to {VOCAB - 1}"),
        (request("a", [1, -1]), RequestError, "token id -1"),
        (request("a", [1] * 40), ContextLengthError, "has 40 tokens; the context holds 40"),
        (request("a", [1], max_tokens=0), RequestError, "max_tokens must be at least 1"),
        (request("a", [1], temperature=-1.0), RequestError, "temperature must be"),
        (request("a", [1], logit_bias=((VOCAB, 1.0),)), RequestError, "logit_bias must be keyed"),
        (request("a", [1], stop_ids=(-5,)), RequestError, "stop_token_ids"),
    ],
)
def test_a_bad_request_is_refused_and_the_others_do_not_notice(
    bad: Request, error: type[Exception], sentence: str
) -> None:
    e = engine()
    good = request("good", [1, 2, 3], max_tokens=6)
    e.submit(good)
    e.step()
    with pytest.raises(error, match=sentence):
        e.submit(bad)
    assert tokens(drain(e), "good") == solo(good, 40)[0][1:]


def test_an_id_in_use_is_refused() -> None:
    e = engine()
    e.submit(request("a", [1]))
    with pytest.raises(RequestError, match="'a' is running"):
        e.submit(request("a", [2]))
    assert ends(drain(e)) == {"a": FinishReason.LENGTH}


# -- aborting --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("steps", range(6))
def test_an_aborted_request_gets_one_last_event(lookahead: int, steps: int) -> None:
    e = engine(lookahead, busy_budget=5, idle_budget=5)
    e.submit(request("a", range(8), max_tokens=9))
    events = [event for _ in range(steps) for event in e.step()]
    e.abort("a")
    e.abort("a")
    assert e.has_work
    events += drain(e)
    assert ends(events) == {"a": FinishReason.ABORT}
    assert e.stats().blocks_used == 0


def test_aborting_what_is_unknown_is_ignored() -> None:
    e = engine()
    e.abort("nobody")
    assert not e.has_work


# -- faults ----------------------------------------------------------------------------------------------


def test_a_row_without_numbers_ends_alone() -> None:
    runner = FakeRunner(BLOCK)
    e = engine(runner=runner)
    runner.poisoned.add("bad")
    e.submit(request("bad", [1, 2]))
    e.submit(request("good", [3, 4]))
    events = drain(e)
    assert ends(events) == {"bad": FinishReason.ERROR, "good": FinishReason.LENGTH}
    (last,) = [event for event in events if event.request_id == "bad"]
    assert last.error is not None and "not a number" in last.error and last.tokens == ()
    assert e.fault is None


class Failing(FakeRunner):
    """Raises at the k-th call of `method`."""

    def __init__(self, method: str, call: int, error: BaseException) -> None:
        super().__init__(BLOCK)
        self.method, self.left, self.error = method, call, error

    def _count(self, method: str) -> None:
        if method == self.method:
            self.left -= 1
            if self.left == 0:
                raise self.error

    def launch(self, plan: StepPlan) -> None:
        self._count("launch")
        super().launch(plan)

    def collect(self) -> StepResult:
        self._count("collect")
        return super().collect()


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("method", ["launch", "collect"])
@pytest.mark.parametrize("call", [1, 2, 5])
def test_a_step_that_fails_ends_every_request_once_and_the_engine_takes_no_more(
    lookahead: int, method: str, call: int
) -> None:
    e = engine(lookahead, Failing(method, call, ValueError("secret detail")), rows=2)
    for name in "abc":
        e.submit(request(name, [1, 2], max_tokens=20))
    events = drain(e)
    assert ends(events) == dict.fromkeys("abc", FinishReason.ERROR)
    errors = {event.error for event in events if event.finish}
    assert errors == {"The engine failed: ValueError."}
    assert e.fault is not None and "secret" not in e.fault.message
    assert isinstance(e.fault, EngineFault) and isinstance(e.fault.__cause__, ValueError)
    with pytest.raises(EngineFault, match="failed"):
        e.submit(request("d", [1]))
    e.abort("a")
    assert not e.has_work and e.step() == []


def test_a_fault_with_a_sentence_keeps_it() -> None:
    e = engine(runner=Failing("launch", 1, EngineFault("The device was lost.")))
    e.submit(request("a", [1]))
    (event,) = drain(e)
    assert event.error == "The engine failed: The device was lost."


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_fault_names_the_step_and_the_requests_it_had(lookahead: int) -> None:
    e = engine(lookahead, Failing("collect", 3, ValueError()), rows=2)
    for name in "abc":
        e.submit(request(name, [1, 2], max_tokens=20))
    drain(e)
    assert e.fault is not None
    assert e.fault.message == f"The engine failed in step {3 + lookahead} with 2 requests (a, b): ValueError."


def test_a_fault_of_many_requests_names_the_first() -> None:
    e = Engine(
        Scheduler(limits(rows=12, blocks=60, busy_budget=20, idle_budget=40)),
        Failing("collect", 1, ValueError("address 0x7f")),
        vocab=VOCAB,
        explain=lambda error: f"The GPU reports {error}.",
    )
    for number in range(12):
        e.submit(request(f"r{number}", [1, 2], max_tokens=20))
    drain(e)
    assert e.fault is not None
    assert e.fault.message == (
        "The engine failed in step 1 with 12 requests (r0, r1, r2, r3, r4, r5, r6, r7, …):"
        " The GPU reports address 0x7f."
    )


def test_an_interrupt_in_a_step_breaks_the_engine_and_is_passed_on() -> None:
    e = engine(runner=Failing("launch", 1, KeyboardInterrupt()))
    e.submit(request("a", [1]))
    with pytest.raises(KeyboardInterrupt):
        e.step()
    assert ends(drain(e)) == {"a": FinishReason.ERROR}


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("call", range(1, 12))
def test_memory_that_runs_out_at_any_allocation_ends_everybody_and_nothing_else(
    lookahead: int, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = FakeRunner(BLOCK)
    scheduler = Scheduler(limits())
    e = Engine(scheduler, runner, vocab=VOCAB, lookahead=lookahead)
    monkeypatch.setattr(scheduler.pool, "claim", failing_at(call, scheduler.pool.claim))
    for name in "abc":
        e.submit(request(name, [1, 2], max_tokens=12))
    assert ends(drain(e)) == dict.fromkeys("abc", FinishReason.ERROR)


def failing_at(call: int, method: Callable[..., Any]) -> Callable[..., Any]:
    """`method`, out of memory at its k-th call."""
    calls = iter(range(1, 10_000))

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            raise MemoryError
        return method(*args, **kwargs)

    return wrapped


# -- the rest --------------------------------------------------------------------------------------------


def test_closing_gives_back_what_it_holds_once_and_refuses_more() -> None:
    runner = FakeRunner(BLOCK)
    calls = []
    e = Engine(Scheduler(limits()), runner, vocab=VOCAB, release=lambda: calls.append(1))
    e.submit(request("a", [1]))
    e.close()
    e.close()
    assert calls == [1] and not e.has_work
    with pytest.raises(EngineFault, match="closed"):
        e.submit(request("b", [1]))


def test_stats_count_tokens_requests_and_times() -> None:
    clock = Clock()
    e = Engine(Scheduler(limits(rows=1)), FakeRunner(BLOCK), vocab=VOCAB, clock=clock)
    e.submit(request("a", range(7), max_tokens=2))
    e.submit(request("b", range(7), max_tokens=3))
    clock.now += 2.0
    e.step()
    stats = e.stats()
    assert (stats.running, stats.waiting, stats.requests, stats.started) == (1, 1, 2, 1)
    assert (stats.blocks, stats.blocks_used) == (20, 3)
    assert (stats.queue_seconds, stats.first_token_seconds) == (2.0, 2.0)
    clock.now += 3.0
    e.submit(request("gone", [1]))
    e.abort("gone")
    drain(e)
    stats = e.stats()
    assert (stats.queue_seconds, stats.first_token_seconds) == (7.0, 7.0)
    assert (stats.prompt_tokens, stats.cached_tokens, stats.generated_tokens) == (14, 6, 5)
    assert stats.computed_tokens == 7 + 1 + 1 + 2
    assert (stats.steps, stats.answered, stats.preemptions) == (5, 2, 0)
    assert stats.finished[FinishReason.LENGTH] == 2 and stats.finished[FinishReason.ABORT] == 1
    assert [timing.tokens for timing in stats.recent] == [7, 1, 1, 1, 1]
    assert all(timing.total == 0.0 for timing in stats.recent)


def test_a_request_with_neutral_parameters_is_valid() -> None:
    engine().validate(Request("a", (1,), SamplingParams(max_tokens=1)))
