"""The engine's thread: who learns what, when, whatever happens to it. No test waits for a clock."""

from __future__ import annotations

import gc
import os
import random
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest

from llmrs_cli.engine.api import Engine
from llmrs_cli.engine.loop import EngineThread
from llmrs_cli.engine.plan import StepPlan
from llmrs_cli.engine.scheduler import Scheduler
from llmrs_cli.engine.types import FinishReason, Request, TokenEvent
from llmrs_cli.errors import ContextLengthError, EngineFault, ModelError, RequestError
from tests.helpers.drive import BLOCK, limits, request
from tests.helpers.fake_runner import VOCAB, FakeRunner, solo

PATIENCE = 60
"""Seconds after which a test gives up; none waits for it to pass."""


class Gated(FakeRunner):
    """Each launch waits for a ticket; `reached` says that one is waiting."""

    def __init__(self, tickets: int = 0) -> None:
        super().__init__(BLOCK)
        self.tickets: SimpleQueue[None] = SimpleQueue()
        self.reached = threading.Event()
        self.give(tickets)

    def give(self, tickets: int) -> None:
        for _ in range(tickets):
            self.tickets.put(None)

    def launch(self, plan: StepPlan) -> None:
        self.reached.set()
        self.tickets.get(timeout=PATIENCE)
        super().launch(plan)


class Raising(FakeRunner):
    """Fails at the third launch."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(BLOCK)
        self.error = error

    def launch(self, plan: StepPlan) -> None:
        if plan.number == 3:
            raise self.error
        super().launch(plan)


class Inbox:
    """A sink that keeps its events and can wait for the last one."""

    def __init__(self) -> None:
        self.events: list[TokenEvent] = []
        self.threads: set[str] = set()
        self._ended = threading.Event()

    def __call__(self, event: TokenEvent) -> None:
        assert not self._ended.is_set(), f"an event after the end: {event}"
        self.events.append(event)
        self.threads.add(threading.current_thread().name)
        if event.finish is not None:
            self._ended.set()

    def wait(self) -> TokenEvent:
        assert self._ended.wait(PATIENCE), "no last event"
        return self.events[-1]

    @property
    def tokens(self) -> list[int]:
        return [token for event in self.events for token in event.tokens]


def opener(runner: FakeRunner, **sizes: int) -> Callable[[], Engine]:
    return lambda: Engine(Scheduler(limits(**sizes)), runner, vocab=VOCAB, release=runner.close)


@pytest.fixture
def thread() -> Iterator[EngineThread]:
    with EngineThread(opener(FakeRunner(BLOCK))) as opened:
        yield opened


def send(thread: EngineThread, each: Request) -> Inbox:
    inbox = Inbox()
    thread.submit(each, inbox)
    return inbox


def test_many_callers_get_their_own_answers(thread: EngineThread) -> None:
    requests = [request(f"r{n}", [n % 10, 1, 2], max_tokens=2 + n % 7, seed=n) for n in range(24)]
    inboxes: dict[str, Inbox] = {}

    def call(part: list[Request]) -> None:
        inboxes.update({each.id: send(thread, each) for each in part})

    callers = [threading.Thread(target=call, args=(requests[n::3],)) for n in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for each in requests:
        inboxes[each.id].wait()
        assert inboxes[each.id].tokens == solo(each, 40)[0]
        assert inboxes[each.id].threads == {"llmrs-engine"}


def test_a_bad_request_raises_in_the_caller(thread: EngineThread) -> None:
    with pytest.raises(ContextLengthError):
        send(thread, request("a", [1] * 50))
    with pytest.raises(RequestError, match="token id"):
        send(thread, request("a", [VOCAB]))
    assert send(thread, request("a", [1])).wait().finish is FinishReason.LENGTH


def test_an_id_in_use_is_refused_and_free_again_after_the_end() -> None:
    runner = Gated()
    with EngineThread(opener(runner)) as thread:
        first = send(thread, request("a", [1], max_tokens=2))
        with pytest.raises(RequestError, match="'a' is running"):
            send(thread, request("a", [1]))
        runner.give(4)
        first.wait()
        assert send(thread, request("a", [1], max_tokens=2)).wait().finish is FinishReason.LENGTH


def test_limits_and_stats_can_be_asked_from_outside(thread: EngineThread) -> None:
    assert (thread.limits, thread.vocab) == (limits(), VOCAB)
    send(thread, request("a", [1], max_tokens=4)).wait()
    assert thread.stats().generated_tokens == 4
    assert thread.fault is None


def test_an_abort_ends_a_request_that_runs_and_one_that_waits() -> None:
    runner = Gated(tickets=1)
    with EngineThread(opener(runner, rows=1)) as thread:
        running = send(thread, request("running", [1], max_tokens=30))
        waiting = send(thread, request("waiting", [2], max_tokens=30))
        assert runner.reached.wait(PATIENCE)
        thread.abort("running")
        thread.abort("waiting")
        thread.abort("nobody")
        runner.give(3)
        assert running.wait().finish is FinishReason.ABORT
        assert waiting.wait().finish is FinishReason.ABORT
        assert send(thread, request("next", [3], max_tokens=1)).wait().finish is FinishReason.LENGTH


def test_a_storm_of_aborts_leaves_nothing_and_every_request_has_one_end(thread: EngineThread) -> None:
    inboxes: dict[str, tuple[Request, Inbox]] = {}

    def storm(caller: int) -> None:
        rng = random.Random(caller)
        for number in range(300):
            each = request(f"{caller}/{number}", [rng.randrange(VOCAB) for _ in range(1 + number % 9)], 8)
            inboxes[each.id] = each, send(thread, each)
            if number % 2:
                thread.abort(f"{caller}/{rng.randrange(number)}")

    callers = [threading.Thread(target=storm, args=(n,)) for n in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for each, inbox in inboxes.values():
        tokens, finish = solo(each, 40)
        if inbox.wait().finish is FinishReason.ABORT:
            assert inbox.tokens == tokens[: len(inbox.tokens)]
        else:
            assert (inbox.tokens, inbox.events[-1].finish) == (tokens, finish)
    assert len(inboxes) == 900
    stats = thread.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    assert sum(stats.finished.values()) == stats.requests == 900


def test_a_sink_that_raises_loses_its_request_and_nobody_else_does() -> None:
    runner = Gated()
    calls = []

    def broken(event: TokenEvent) -> None:
        calls.append(event)
        raise ValueError("not my day")

    with EngineThread(opener(runner)) as thread:
        thread.submit(request("broken", [1], max_tokens=20), broken)
        good = send(thread, request("good", [2], max_tokens=6))
        runner.give(8)
        assert good.wait().finish is FinishReason.LENGTH
        assert len(calls) == 1
        assert send(thread, request("broken", [1], max_tokens=1)).wait().finish is FinishReason.LENGTH


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), MemoryError()])
def test_a_thread_that_dies_tells_everybody_and_takes_no_more(error: BaseException) -> None:
    runner = Raising(error)
    with EngineThread(opener(runner, rows=1)) as thread:
        inboxes = [send(thread, request(name, [1], max_tokens=20)) for name in "abc"]
        for inbox in inboxes:
            last = inbox.wait()
            assert last.finish is FinishReason.ERROR
            assert last.error is not None and type(error).__name__ in last.error
        thread._thread.join(PATIENCE)
        with pytest.raises(EngineFault, match=type(error).__name__) as caught:
            send(thread, request("d", [1]))
        assert thread.fault is caught.value
        thread.abort("a")
    assert runner.closed


def test_books_that_do_not_balance_when_idle_are_a_fault(
    thread: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong() -> None:
        raise AssertionError("BlockPool: free 1 + used 1 != total 3.")

    send(thread, request("a", [1])).wait()
    monkeypatch.setattr(thread._engine, "check", wrong)
    send(thread, request("b", [1])).wait()
    thread._thread.join(PATIENCE)
    with pytest.raises(EngineFault, match="AssertionError"):
        send(thread, request("c", [1]))


def test_what_opening_raises_is_raised_to_whoever_opens() -> None:
    def fail() -> Engine:
        raise ModelError("There is no such model.")

    before = threading.active_count()
    with pytest.raises(ModelError, match="no such model"):
        EngineThread(fail)
    assert threading.active_count() == before


def test_closing_ends_what_is_left_and_is_allowed_twice() -> None:
    runner = Gated(tickets=2)
    thread = EngineThread(opener(runner, rows=1))
    left = [send(thread, request(name, [1], max_tokens=30)) for name in "ab"]
    assert runner.reached.wait(PATIENCE)
    thread._inbox.put(None)  # what close does first; the thread is inside its third launch or before
    runner.give(3)
    thread.close()
    thread.close()
    assert [inbox.wait().finish for inbox in left] == [FinishReason.ABORT] * 2
    assert runner.closed and not thread._thread.is_alive()
    with pytest.raises(EngineFault, match="closed"):
        send(thread, request("c", [1]))


def test_the_engine_is_opened_in_its_own_thread_and_start_up_objects_are_frozen() -> None:
    opened_in = []

    def open_engine() -> Engine:
        opened_in.append(threading.current_thread().name)
        return opener(FakeRunner(BLOCK))()

    with EngineThread(open_engine):
        assert opened_in == ["llmrs-engine"]
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_another_process_is_refused(thread: EngineThread, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: mine + 1)
        with pytest.raises(EngineFault, match="another process"):
            send(thread, request("a", [1]))
        with pytest.raises(EngineFault, match="another process"):
            thread.abort("a")
        thread.close()
    assert send(thread, request("a", [1])).wait().finish is FinishReason.LENGTH


def test_a_sink_that_raises_gets_nothing_more_of_the_same_step(thread: EngineThread) -> None:
    got: dict[str, list[TokenEvent]] = {"broken": [], "good": []}
    aborted: list[str] = []

    def broken(event: TokenEvent) -> None:
        got["broken"].append(event)
        raise ValueError("not my day")

    class Listening:
        def abort(self, request_id: str) -> None:
            aborted.append(request_id)

    with thread._lock:
        thread._sinks |= {"broken": broken, "good": got["good"].append}
    events = [
        TokenEvent("broken", (1,)),
        TokenEvent("nobody", (1,)),
        TokenEvent("good", (2,)),
        TokenEvent("broken", (3,), finish=FinishReason.ABORT),
        TokenEvent("good", (4,), finish=FinishReason.LENGTH),
    ]
    thread._deliver(Listening(), events)  # type: ignore[arg-type]
    assert [event.tokens for event in got["broken"]] == [(1,)]
    assert [event.tokens for event in got["good"]] == [(2,), (4,)]
    assert aborted == ["broken"]
    assert not {"broken", "good"} & thread._sinks.keys()
