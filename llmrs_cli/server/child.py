"""The engine's process: opens an engine, takes requests from one pipe, writes events to another.

    python -P -m llmrs_cli.server.child READ_FD WRITE_FD

Started by `server.remote`, never by a person. Threads: this one reads commands; the engine has its own;
one writes whatever has gathered while it wrote before; one sends the counters at an even pace. When the
server goes away its end of the pipe closes, and this process ends at once, whatever it is doing.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO

import msgspec

from llmrs_cli.engine import EngineThread, FinishReason, Request, SamplingParams, TokenEvent, open_engine
from llmrs_cli.engine.backends.registry import open_backend
from llmrs_cli.engine.types import BROKEN, FORM, entries, split
from llmrs_cli.engine.weights.small_head import open_model
from llmrs_cli.errors import EngineFault, ExitCode, LlmrsError, RequestError
from llmrs_cli.server.wire import (
    HEADER,
    Abort,
    Beat,
    Broken,
    Events,
    Failed,
    FromEngine,
    Open,
    Progress,
    Ready,
    Submit,
    ToEngine,
    body_length,
    frame,
)
from llmrs_cli.text.generate import grammars_of
from llmrs_cli.text.grammar import GrammarMatcher, json_object

COMPILERS = 2
"""Threads that compile grammars."""
PACE = 0.25
"""Seconds between two beats."""
MOST = 2048
"""Events and log-probabilities in a frame, about: who reads it has other things to do as well."""


class Outbox:
    """Sends messages in order from a thread of its own; events that gather meanwhile share a frame, or a few."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe
        self._queue: SimpleQueue[FromEngine | TokenEvent | None] = SimpleQueue()
        self.put = self._queue.put
        self._thread = threading.Thread(target=self._write, name="llmrs-outbox", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send what is left."""
        self.put(None)
        self._thread.join()

    def _write(self) -> None:
        try:
            for batch in self._batches():
                events = [item for item in batch if isinstance(item, TokenEvent)]
                messages: list[FromEngine] = [item for item in batch if not isinstance(item, TokenEvent)]
                self._pipe.write(b"".join(map(frame, [*_frames(events), *messages])))
                self._pipe.flush()
        except OSError:
            os._exit(ExitCode.OK)  # the server is gone

    def _batches(self) -> Iterator[list[FromEngine | TokenEvent]]:
        while True:
            batch = [self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get())
            yield [item for item in batch if item is not None]
            if None in batch:
                return


def _frames(events: Iterable[TokenEvent]) -> Iterator[Events]:
    """Events as messages none of which is long, whatever they hold."""
    held: list[TokenEvent] = []
    size = 0
    for event in events:
        for piece in split(event, MOST):
            held.append(piece)
            size += 1 + entries(piece)
            if size >= MOST:
                yield Events(held)
                held, size = [], 0
    if held:
        yield Events(held)


class Desk:
    """Passes commands on. A request whose grammar is to be compiled does not hold up the others."""

    def __init__(self, engine: EngineThread, outbox: Outbox) -> None:
        self._engine = engine
        self._outbox = outbox
        self._pool = ThreadPoolExecutor(COMPILERS, thread_name_prefix="llmrs-compile")
        self._lock = threading.Lock()
        self._compiling: set[str] = set()
        self._aborted: set[str] = set()
        """Of those that are being compiled."""

    def obey(self, message: ToEngine) -> None:
        """Do what the server says."""
        match message:
            case Submit(request) if request.grammar:
                with self._lock:
                    self._compiling.add(request.id)
                self._pool.submit(self._compile, request)
            case Submit(request):
                self._submit(request)
            case Abort(request_id):
                with self._lock:
                    if request_id in self._compiling:
                        self._aborted.add(request_id)
                self._engine.abort(request_id)

    def _compile(self, request: Request) -> None:
        self._submit(request)
        with self._lock:
            self._compiling.discard(request.id)
            if request.id in self._aborted:
                self._aborted.discard(request.id)
                self._engine.abort(request.id)

    def _submit(self, request: Request) -> None:
        try:
            self._engine.submit(request, self._outbox.put)
        except RequestError as error:  # all else of it has been looked at by the server
            told = TokenEvent(request.id, finish=FinishReason.ERROR, error=error.message, code=FORM)
            self._outbox.put(told)
        except EngineFault as fault:  # it has failed since the request was sent
            told = TokenEvent(request.id, finish=FinishReason.ERROR, error=fault.message, code=BROKEN)
            self._outbox.put(told)
        except LlmrsError as error:
            self._outbox.put(TokenEvent(request.id, finish=FinishReason.ERROR, error=error.message))


def run(commands: BinaryIO, outbox: Outbox) -> int:
    """Serve until the pipe closes or the engine breaks; the exit status."""
    reader = _messages(commands)
    first = next(reader, None)
    if not isinstance(first, Open):
        return ExitCode.OK
    try:
        engine = _open(first, outbox)
    except LlmrsError as error:
        outbox.put(Failed(error.exit_code, error.message, error.hint))
        return error.exit_code
    except Exception as error:
        outbox.put(Failed(ExitCode.RUNTIME, f"The engine could not be opened: {type(error).__name__}."))
        raise
    outbox.put(Ready(engine.limits, engine.vocab))
    clock = _no_time if first.device.startswith("cuda") else time.process_time
    threading.Thread(target=_beat, args=(engine, outbox, clock), name="llmrs-beat", daemon=True).start()
    desk = Desk(engine, outbox)
    for message in reader:
        desk.obey(message)
    return ExitCode.OK


def _open(order: Open, outbox: Outbox) -> EngineThread:
    """The engine, with one token computed so that whatever is compiled on first use is compiled."""
    checkpoint = open_model(Path(order.path), small_head=order.small_head)

    def progress(done: int, total: int) -> None:
        outbox.put(Progress(done, total))

    grammars = grammars_of(checkpoint)
    # Beside loading: the first form would stop every stream for half a second.
    prepare = threading.Thread(target=_prepare, args=(grammars,), name="llmrs-prepare", daemon=True)
    prepare.start()
    engine = EngineThread(
        lambda: open_engine(
            checkpoint,
            open_backend(order.device, deterministic=order.deterministic),
            context=order.context,
            rows=order.rows,
            memory=order.memory,
            progress=progress,
            grammars=grammars,
        )
    )
    prepare.join()
    ended: SimpleQueue[TokenEvent] = SimpleQueue()
    engine.submit(Request("warm-up", (0,), SamplingParams(max_tokens=2, ignore_eos=True)), ended.put)
    while ended.get().finish is None:
        pass
    if engine.fault is not None:
        raise engine.fault
    return engine


def _prepare(grammars: Callable[[str], GrammarMatcher]) -> None:
    """Get ready to compile grammars, if there can be any."""
    with suppress(LlmrsError):
        grammars(json_object())


def _no_time() -> float:
    """What the processor has computed where it computes nothing: it may be busy waiting for a device."""
    return 0.0


def _beat(engine: EngineThread, outbox: Outbox, computed: Callable[[], float]) -> None:
    """Counters at an even pace; a broken engine ends the process, after everybody was told."""
    pause = threading.Event()
    while engine.fault is None:
        outbox.put(Beat(replace(engine.stats(), recent=()), computed()))
        pause.wait(PACE)
    outbox.put(Broken(engine.fault.message))
    outbox.close()
    os._exit(ExitCode.ENGINE_FAULT)


def _messages(pipe: BinaryIO) -> Iterator[ToEngine]:
    """Messages until the pipe closes, be it in the middle of one: the server may be killed at any time."""
    decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
    while len(header := pipe.read(HEADER)) == HEADER:
        length = body_length(header)
        if len(body := pipe.read(length)) < length:
            return
        yield decoder.decode(body)


def main() -> None:
    """Entry point of the process; signals are the server's business."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    read, write = map(int, sys.argv[1:3])
    outbox = Outbox(os.fdopen(write, "wb"))
    status = ExitCode.RUNTIME
    try:
        status = ExitCode(run(os.fdopen(read, "rb"), outbox))
    finally:
        outbox.close()
        sys.stderr.flush()
        os._exit(status)  # the engine may be in the middle of a long step


if __name__ == "__main__":
    main()
