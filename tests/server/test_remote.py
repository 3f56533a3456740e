"""The engine in another process: what crosses the pipes, and every way in which the other side can fail."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine.limits import EngineLimits
from llmrs_cli.engine.types import FinishReason, Request, SamplingParams, TokenEvent, TokenLogprob
from llmrs_cli.errors import DoesNotFitError, EngineFault, ModelError, RequestError
from llmrs_cli.server import pace, wire
from llmrs_cli.server.remote import RemoteEngine

READY = """
import sys, time, os
from dataclasses import replace
from llmrs_cli.engine.limits import EngineLimits
from llmrs_cli.engine.stats import Recorder
from llmrs_cli.server.wire import *
out = os.fdopen(int(sys.argv[2]), "wb", buffering=0)
inbox = os.fdopen(int(sys.argv[1]), "rb")
tell = lambda message: out.write(frame(message))
stats = Recorder().snapshot(running=0, waiting=0, blocks=1, blocks_used=0, preemptions=0)
tell(Ready(EngineLimits(4, 64, 64, 16, 64, 256), 100))
tell(Beat(stats))
"""
ASK = Request("a", (1, 2, 3), SamplingParams(max_tokens=4))

tokens = st.tuples() | st.lists(st.integers(0, 2**31), max_size=3).map(tuple)
scores = st.builds(TokenLogprob, st.integers(0, 9), st.floats(allow_nan=False), st.just(((1, -0.5),)))
events = st.builds(
    TokenEvent,
    st.text(max_size=5),
    tokens,
    st.lists(scores, max_size=2).map(tuple),
    st.none() | st.just((None,)),
    st.integers(0, 9),
    st.none() | st.sampled_from(FinishReason),
    st.none() | st.text(max_size=5),
)


@given(st.lists(events, max_size=4))
def test_events_cross_as_they_are(batch: list[TokenEvent]) -> None:
    data = wire.frame(wire.Events(batch))
    assert wire.body_length(data[:4]) == len(data) - 4
    message = msgspec.msgpack.decode(data[4:], type=wire.FromEngine)
    assert message == wire.Events(batch)


@given(st.integers(0, 2**64 - 1), st.floats(0, 2), st.text(max_size=9))
def test_requests_cross_as_they_are(seed: int, temperature: float, grammar: str) -> None:
    params = SamplingParams(9, seed=seed, temperature=temperature, logit_bias=((5, -1.5),), stop_ids=(1,))
    request = Request("r", (1, 2), params, 3, "salt", grammar)
    data = wire.frame(wire.Submit(request))[4:]
    assert msgspec.msgpack.decode(data, type=wire.ToEngine) == wire.Submit(request)


def test_a_frame_has_a_greatest_length() -> None:
    with pytest.raises(ValueError, match="a frame of"):
        wire.body_length(b"\xff\xff\xff\xff")


async def start(script: str, tmp_path: Path, watchdog: float = 60.0) -> RemoteEngine:
    """An engine whose process runs `script`."""
    file = tmp_path / "child.py"
    file.write_text(script)
    command = (sys.executable, str(file))
    return await RemoteEngine.start(tmp_path, device="x", command=command, watchdog=watchdog)


def test_a_pipe_that_is_always_full_leaves_the_loop_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = 200
    told = f"""
inbox.read(4)
event = TokenEvent("a", (1,))
out.write(b"".join(frame(Events([event])) for _ in range({frames})) + frame(Events([event._replace(finish="stop")])))
time.sleep(60)
"""
    monkeypatch.setattr(pace, "SLICE", 0.0)

    async def scene() -> int:
        engine = await start(READY + "from llmrs_cli.engine.types import TokenEvent" + told, tmp_path)
        rounds, ended = 0, asyncio.Event()
        at: list[int] = []

        def sink(event: TokenEvent) -> None:
            at.append(rounds)
            if event.finish is not None:
                ended.set()

        engine.submit(ASK, sink)
        while not ended.is_set():
            rounds += 1
            await asyncio.sleep(0)
        engine.close()
        return at[-1] - at[0]

    assert asyncio.run(scene()) >= frames // 2


async def asked(engine: RemoteEngine) -> TokenEvent:
    """The last event of a request."""
    last: asyncio.Future[TokenEvent] = asyncio.get_running_loop().create_future()

    def sink(event: TokenEvent) -> None:
        if event.finish is not None:
            last.set_result(event)

    engine.submit(ASK, sink)
    return await asyncio.wait_for(last, 60)


@pytest.mark.parametrize(
    ("exit_code", "kind"),
    [(5, ModelError), (6, DoesNotFitError), (8, EngineFault)],
    ids=["model", "memory", "device"],
)
def test_what_opening_raises_there_is_raised_here(
    exit_code: int, kind: type[Exception], tmp_path: Path
) -> None:
    script = f"{READY.split('tell(Ready')[0]}\ntell(Failed({exit_code}, 'No good.', 'Try another.'))"
    with pytest.raises(kind, match="No good. Try another."):
        asyncio.run(start(script, tmp_path))


@pytest.mark.parametrize(
    "script", ["", "import sys; sys.exit(3)", "import os, signal; os.kill(os.getpid(), 9)"]
)
def test_a_process_that_ends_before_it_is_ready_is_a_fault(script: str, tmp_path: Path) -> None:
    with pytest.raises(EngineFault, match="ended unexpectedly"):
        asyncio.run(start(script, tmp_path))


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("inbox.read(8)", "ended unexpectedly"),
        ("inbox.read(8); out.write(b'\\xff\\xff\\xff\\xff')", "should not"),
        ("inbox.read(8); out.write(b'\\0\\0\\0\\1x')", "should not"),
        ("inbox.read(8); tell(Broken('The device is gone.'))", "The device is gone."),
        ("time.sleep(60)", "has not moved"),
        (
            "for i in range(999):\n    tell(Beat(replace(stats, running=1))); time.sleep(0.05)",
            "has not moved",
        ),
        (
            "for i in range(999):\n    tell(Beat(replace(stats, running=1), i * 0.1)); time.sleep(0.05)",
            "has not moved",
        ),
    ],
    ids=["ends", "too long", "not a message", "broken", "hangs", "beats without a step", "computes for ever"],
)
def test_whatever_happens_there_every_request_is_told(ending: str, said: str, tmp_path: Path) -> None:
    async def scene() -> None:
        engine = await start(READY + ending, tmp_path, watchdog=0.4)
        event = await asked(engine)
        assert event.finish is FinishReason.ERROR
        assert said in (event.error or "")
        assert engine.broken.is_set()
        with pytest.raises(EngineFault):
            engine.submit(ASK, print)
        engine.close()

    asyncio.run(scene())


def test_a_long_step_is_not_a_hanging_one(tmp_path: Path) -> None:
    ending = """
inbox.read(8)
for i in range(30):
    tell(Beat(replace(stats, running=1), i * 0.1)); time.sleep(0.05)
tell(Events([TokenEvent("a", (5,), finish=FinishReason.LENGTH)]))
inbox.read()
"""
    imports = "from llmrs_cli.engine.types import FinishReason, TokenEvent\n"

    async def scene() -> None:
        engine = await start(imports + READY + ending, tmp_path, watchdog=0.4)
        assert (await asked(engine)).finish is FinishReason.LENGTH
        engine.close()

    asyncio.run(scene())


FAULTY = """
from itertools import count
from llmrs_cli.engine.api import Engine
from llmrs_cli.server import child

steps, advance = count(), Engine._advance

def broken(self):
    if next(steps) >= 8:
        raise {error}("a secret of ours")
    advance(self)

Engine._advance = broken
child.main()
"""


@pytest.mark.parametrize("error", ["RuntimeError", "SystemExit", "MemoryError"])
def test_an_engine_that_breaks_in_a_step_tells_everybody_and_ends(
    error: str, script_model: Path, tmp_path: Path
) -> None:
    async def scene() -> None:
        file = tmp_path / "child.py"
        file.write_text(FAULTY.format(error=error))
        engine = await RemoteEngine.start(
            script_model, device="reference", command=(sys.executable, str(file))
        )
        told: list[TokenEvent] = []
        for name in "ab":
            params = SamplingParams(max_tokens=400, ignore_eos=True)
            engine.submit(Request(name, (1, 2, 3), params), told.append)
        await asyncio.wait_for(engine.broken.wait(), 60)
        assert {event.request_id for event in told if event.finish is FinishReason.ERROR} == {"a", "b"}
        assert "secret" not in str([event.error for event in told])
        engine.close()

    asyncio.run(scene())


def test_a_bad_request_never_crosses(tmp_path: Path) -> None:
    async def scene() -> None:
        engine = await start(READY + "inbox.read()", tmp_path)
        for bad in (
            Request("a", (), ASK.params),
            Request("a", (100,), ASK.params),
            Request("a", (1,) * 64, ASK.params),
        ):
            with pytest.raises(RequestError):
                engine.submit(bad, print)
        engine.submit(ASK, lambda event: None)
        with pytest.raises(RequestError, match="is running"):
            engine.submit(ASK, print)
        assert engine.limits == EngineLimits(4, 64, 64, 16, 64, 256)
        engine.close()

    asyncio.run(scene())


def test_closing_ends_what_is_left(tmp_path: Path) -> None:
    async def scene() -> list[TokenEvent]:
        engine = await start(READY + "inbox.read()", tmp_path)
        told: list[TokenEvent] = []
        engine.submit(ASK, told.append)
        engine.close()
        engine.abort("a")
        return told

    assert [event.finish for event in asyncio.run(scene())] == [FinishReason.ABORT]


def test_a_process_that_does_not_hear_that_all_is_over_is_killed(tmp_path: Path) -> None:
    """As one that is in the middle of a long step."""

    async def scene() -> int:
        engine = await start(READY + "time.sleep(600)", tmp_path)
        engine.close()
        assert engine._process.returncode is not None
        return engine._process.returncode

    assert asyncio.run(scene()) == -signal.SIGKILL


@pytest.mark.parametrize("answer", ["Events([])", "Progress(1, 2)"])
def test_what_comes_before_it_is_ready_is_no_reason_to_fail(answer: str, tmp_path: Path) -> None:
    script = READY.replace("tell(Ready", f"tell({answer})\ntell(Ready") + "inbox.read()"

    async def scene() -> int:
        engine = await start(script, tmp_path)
        engine.close()
        return engine.vocab

    assert asyncio.run(scene()) == 100
