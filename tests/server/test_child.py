"""The engine's process from the inside: what it writes, and that no request holds up another one."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from llmrs_cli.engine.types import (
    BROKEN,
    FORM,
    FinishReason,
    Request,
    SamplingParams,
    TokenEvent,
    TokenLogprob,
    entries,
    joined,
)
from llmrs_cli.errors import EngineFault, RequestError
from llmrs_cli.server import child, wire
from llmrs_cli.server.child import Desk, Outbox
from tests.helpers.served import wait_until

PARAMS = SamplingParams(max_tokens=4)


def messages(data: bytes) -> list[Any]:
    """What a reader of the pipe gets."""
    found = []
    while data:
        length = wire.body_length(data[: wire.HEADER])
        found.append(msgspec.msgpack.decode(data[wire.HEADER :][:length], type=wire.FromEngine))
        data = data[wire.HEADER + length :]
    return found


class Pipe(io.BytesIO):
    """A pipe on whose other side nobody reads until `open` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.begun = threading.Event(), threading.Event()

    def write(self, data: Any) -> int:
        self.begun.set()
        self.open.wait()
        return super().write(data)


def test_messages_go_out_in_order_and_events_that_gathered_share_a_frame() -> None:
    pipe = Pipe()
    outbox = Outbox(pipe)
    outbox.put(wire.Progress(1, 2))
    pipe.begun.wait()  # the rest gathers
    for number in range(5):
        outbox.put(TokenEvent("a", (number,)))
    outbox.put(wire.Broken("gone"))
    pipe.open.set()
    outbox.close()
    progress, events, broken = messages(pipe.getvalue())
    assert progress == wire.Progress(1, 2)
    assert events == wire.Events([TokenEvent("a", (number,)) for number in range(5)])
    assert broken == wire.Broken("gone")


def test_closing_sends_what_is_left() -> None:
    pipe = Pipe()
    pipe.open.set()
    outbox = Outbox(pipe)
    for number in range(100):
        outbox.put(TokenEvent("a", (number,)))
    outbox.close()
    sent = [event for message in messages(pipe.getvalue()) for event in message.events]
    assert [event.tokens for event in sent] == [(number,) for number in range(100)]


def test_no_frame_is_long_whatever_the_events_hold() -> None:
    pipe = Pipe()
    outbox = Outbox(pipe)
    outbox.put(wire.Progress(1, 2))
    pipe.begun.wait()  # the rest gathers
    score = TokenLogprob(7, -1.0, tuple((token, -2.0) for token in range(5)))
    event = TokenEvent("a", (1,), (score,), (None, *[score] * 3000))
    small = [TokenEvent("b", (number,)) for number in range(5000)]
    for each in (event, *small):
        outbox.put(each)
    pipe.open.set()
    outbox.close()
    frames = [message.events for message in messages(pipe.getvalue()) if isinstance(message, wire.Events)]
    assert len(frames) > 5
    assert all(sum(1 + entries(event) for event in frame) <= 2 * child.MOST for frame in frames)
    came = [event for frame in frames for event in frame]
    assert [event for event in came if event.request_id == "b"] == small
    assert joined([event for event in came if event.request_id == "a"]) == event


class Engine:
    """Takes requests; those with a grammar are held until `compiled` is set."""

    def __init__(self) -> None:
        self.compiled = threading.Event()
        self.taken: list[str] = []
        self.aborted: list[str] = []

    def submit(self, request: Request, sink: Callable[[TokenEvent], None]) -> None:
        if request.grammar:
            self.compiled.wait()
        if request.id == "bad":
            raise RequestError("It cannot be followed.")
        self.taken.append(request.id)

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)


class Told:
    """An outbox that keeps what it is given."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.put = self.events.append


@pytest.fixture
def engine() -> Engine:
    return Engine()


def desk(engine: Any, told: Any) -> Desk:
    return Desk(engine, told)


def ask(name: str, grammar: str = "") -> wire.Submit:
    return wire.Submit(Request(name, (1,), PARAMS, grammar=grammar))


def test_a_grammar_that_is_being_compiled_holds_nobody_up(engine: Engine) -> None:
    one = desk(engine, Told())
    for name in "ab":
        one.obey(ask(name, "slow"))
    one.obey(ask("free"))
    assert engine.taken == ["free"]
    engine.compiled.set()
    wait_until(lambda: sorted(engine.taken) == ["a", "b", "free"])


def test_a_request_aborted_while_it_is_compiled_is_aborted_after(engine: Engine) -> None:
    one = desk(engine, Told())
    one.obey(ask("a", "slow"))
    one.obey(wire.Abort("a"))
    engine.compiled.set()
    wait_until(lambda: engine.taken == ["a"] and engine.aborted == ["a", "a"])
    one.obey(wire.Abort("a"))
    assert engine.aborted == ["a", "a", "a"]


@pytest.mark.parametrize("grammar", ["", "slow"])
def test_a_request_that_cannot_be_taken_is_told_so_itself(engine: Engine, grammar: str) -> None:
    engine.compiled.set()
    told = Told()
    one = desk(engine, told)
    one.obey(ask("bad", grammar))
    one.obey(ask("good"))
    wait_until(lambda: bool(told.events))
    (event,) = told.events
    assert (event.request_id, event.finish, event.code) == ("bad", FinishReason.ERROR, FORM)
    assert event.error == "It cannot be followed."
    assert engine.taken == ["good"]


def test_a_request_for_an_engine_that_has_failed_since_is_told_of_the_fault() -> None:
    class Failed(Engine):
        def submit(self, request: Request, sink: Any) -> None:
            raise EngineFault("The engine's thread died of SystemExit.")

    told = Told()
    desk(Failed(), told).obey(ask("late"))
    (event,) = told.events
    assert (event.request_id, event.finish, event.code) == ("late", FinishReason.ERROR, BROKEN)
    assert event.error == "The engine's thread died of SystemExit."
