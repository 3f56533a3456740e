"""The engine's process from its first message to its end: what it tells the server in each case, and its exit status."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from llmrs_cli.engine.limits import EngineLimits
from llmrs_cli.engine.stats import Recorder
from llmrs_cli.engine.types import Request, SamplingParams, TokenEvent
from llmrs_cli.errors import EngineFault, ExitCode
from llmrs_cli.server import child, wire
from llmrs_cli.server.child import Outbox
from llmrs_cli.text.grammar import GrammarCompiler
from tests.helpers.served import wait_until
from tests.helpers.tiny_model import TinyModel, write_tiny
from tests.server.test_child import Engine, messages

LIMITS = EngineLimits(4, 64, 64, 16, 64, 256)
OPEN = wire.Open("/nowhere", "reference")
STATS = Recorder().snapshot(running=0, waiting=0, blocks=1, blocks_used=0, preemptions=0)


def ask(name: str) -> wire.Submit:
    return wire.Submit(Request(name, (1,), SamplingParams(max_tokens=4)))


def served(data: bytes) -> tuple[int, list[Any]]:
    """The status of a process that hears `data`, and what it told."""
    pipe = io.BytesIO()
    outbox = Outbox(pipe)
    return child.run(io.BytesIO(data), outbox), told_by(outbox, pipe)


def told_by(outbox: Outbox, pipe: io.BytesIO) -> list[Any]:
    outbox.close()
    return messages(pipe.getvalue())


def frames(*sent: wire.ToEngine) -> bytes:
    return b"".join(map(wire.frame, sent))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """What opens, whatever is asked for; its heart does not beat."""
    opened: Any = Engine()
    opened.limits, opened.vocab = LIMITS, 100
    monkeypatch.setattr(child, "_open", lambda order, outbox: opened)
    monkeypatch.setattr(child, "_beat", lambda *_: None)
    found: Engine = opened
    return found


@pytest.mark.parametrize("data", [b"", b"\0\0", frames(wire.Abort("a")), frames(ask("a"))])
def test_a_server_that_goes_before_it_says_what_to_open_is_no_error(data: bytes) -> None:
    assert served(data) == (ExitCode.OK, [])


def test_a_model_that_cannot_be_opened_is_told_with_its_status_and_hint(tmp_path: Path) -> None:
    status, told = served(frames(wire.Open(str(tmp_path / "none"), "reference"), ask("a")))
    (failed,) = told
    assert isinstance(failed, wire.Failed)
    assert status == failed.exit_code == ExitCode.MODEL
    assert "none" in failed.message


def test_what_nobody_expected_is_told_by_its_kind_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a secret of ours")

    monkeypatch.setattr(child, "_open", broken)
    pipe = io.BytesIO()
    outbox = Outbox(pipe)
    with pytest.raises(ZeroDivisionError):
        child.run(io.BytesIO(frames(OPEN)), outbox)
    (failed,) = told_by(outbox, pipe)
    assert failed == wire.Failed(ExitCode.RUNTIME, "The engine could not be opened: ZeroDivisionError.")


@pytest.mark.parametrize("tokenizer", [True, False])
def test_when_it_is_ready_the_first_form_is_as_quick_as_any(
    tmp_path: Path, tokenizer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its vocabulary has been made, if there is one."""
    made: list[Any] = []
    whole = GrammarCompiler._vocabulary

    def note(self: GrammarCompiler) -> Any:
        made.append(self)
        return whole(self)

    monkeypatch.setattr(GrammarCompiler, "_vocabulary", note)
    model = write_tiny(tmp_path, TinyModel(tokenizer=tokenizer))
    outbox = Outbox(io.BytesIO())
    opened = child._open(wire.Open(str(model), "reference", context=64, rows=1), outbox)
    assert len(made) == tokenizer
    opened.close()
    outbox.close()


def test_it_is_ready_once_and_then_obeys_in_order(engine: Engine) -> None:
    status, told = served(frames(OPEN, ask("a"), ask("b"), wire.Abort("a"), ask("c")))
    assert (status, told) == (ExitCode.OK, [wire.Ready(LIMITS, 100)])
    assert (engine.taken, engine.aborted) == (["a", "b", "c"], ["a"])


def test_a_server_that_is_killed_while_it_writes_ends_it_well(engine: Engine) -> None:
    whole, last = frames(OPEN, ask("a")), wire.frame(ask("b"))
    for cut in range(len(last)):
        engine.taken.clear()
        assert served(whole + last[:cut])[0] == ExitCode.OK
        assert engine.taken == ["a"]


class Ended(Exception):
    """In place of the end of the process."""


def ends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Statuses with which the process would have ended."""
    found: list[int] = []

    def end(status: int) -> None:
        found.append(status)
        raise Ended

    monkeypatch.setattr(os, "_exit", end)
    return found


def beat(faults: Sequence[EngineFault | None]) -> list[Any]:
    """What is told by an engine that has one of these at each look."""
    looks = iter(faults)

    class Watched:
        fault: EngineFault | None = None

        def stats(self) -> Any:
            type(self).fault = next(looks)
            return STATS

    pipe = io.BytesIO()
    outbox = Outbox(pipe)
    broken: Any = Watched()
    with pytest.raises(Ended):
        child._beat(broken, outbox, lambda: 1.5)
    return messages(pipe.getvalue())


def test_counters_are_told_until_the_engine_breaks_and_then_why(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = ends(monkeypatch)
    monkeypatch.setattr(child, "PACE", 0)
    told = beat([None, None, EngineFault("The device is gone.")])
    assert told == [wire.Beat(STATS, 1.5)] * 3 + [wire.Broken("The device is gone.")]
    assert statuses == [ExitCode.ENGINE_FAULT]


def test_it_ends_at_once_when_nobody_reads_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.BytesIO):
        def write(self, data: Any) -> int:
            raise BrokenPipeError

    statuses: list[int] = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    outbox = Outbox(Gone())
    outbox.put(TokenEvent("a", (1,)))
    outbox.close()
    assert statuses == [ExitCode.OK]


def test_the_clock_of_a_device_stands_still(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    """A process that waits for a GPU may be busy doing so: what it has computed tells nothing."""
    clocks: list[float] = []
    monkeypatch.setattr(child, "_beat", lambda engine, outbox, clock: clocks.append(clock()))
    for number, device in enumerate(("cpu", "cuda", "cuda:1"), 1):
        served(frames(wire.Open("/nowhere", device)))
        wait_until(lambda number=number: len(clocks) == number)
    assert clocks[0] > 0
    assert clocks[1:] == [0.0, 0.0]
