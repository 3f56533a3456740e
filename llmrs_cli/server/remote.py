"""The engine in another process, as text sees it: the protocol `TokenEngine`, over two pipes.

Everything here runs in the server's event loop; nothing waits. Requests are validated on this side, so
that a bad one is an exception where it is made and never crosses. A process that ends, a step that does
not end and a frame out of step all become one `fault`, told to every request in flight.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from llmrs_cli.engine.limits import EngineLimits, check_request
from llmrs_cli.engine.stats import EngineStats
from llmrs_cli.engine.types import BROKEN, FinishReason, Request, TokenEvent
from llmrs_cli.errors import (
    DoesNotFitError,
    EngineFault,
    LlmrsError,
    ModelError,
    RequestError,
    UsageError,
)
from llmrs_cli.server.pace import Pace
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

Sink = Callable[[TokenEvent], None]
ERRORS: dict[int, type[LlmrsError]] = {
    kind.exit_code: kind for kind in (UsageError, ModelError, DoesNotFitError, EngineFault)
}
COMPUTES = 0.02
"""Processor seconds between two beats that a process needs which is in the middle of a step; a beat needs far less."""
LONGEST = 10
"""A step that computes may last so many times the watchdog's patience: what computes for ever hangs as well."""
CHILD = (sys.executable, "-P", "-m", "llmrs_cli.server.child")


class RemoteEngine:
    """Made by `start`. Methods belong to the event loop's thread."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.WriteTransport,
        *,
        watchdog: float,
    ) -> None:
        """Put together by `start`. `watchdog`: seconds without a step after which work counts as hung."""
        self.fault: EngineFault | None = None
        self.broken = asyncio.Event()
        """Set when there is a fault."""
        self._process, self._reader, self._writer = process, reader, writer
        self._watchdog = watchdog
        self._sinks: dict[str, Sink] = {}
        self._ready: Ready | None = None
        self._stats: EngineStats | None = None
        self._moved = time.monotonic()
        """When the engine was last seen to move, or to have nothing to do."""
        self._stepped = self._moved
        """The same without what it computed in the middle of a step."""
        self._computed = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._pace = Pace()

    @classmethod
    async def start(
        cls,
        path: Path,
        *,
        device: str,
        context: int | None = None,
        rows: int | None = None,
        memory: int | None = None,
        deterministic: bool = False,
        small_head: bool = False,
        progress: Callable[[int, int], None] | None = None,
        watchdog: float = 60.0,
        command: tuple[str, ...] = CHILD,
    ) -> RemoteEngine:
        """Spawn the process and wait until it can serve. Raises what opening the engine raised there."""
        process, reader, writer = await _spawn(command)
        engine = cls(process, reader, writer, watchdog=watchdog)
        engine._send(Open(str(path.absolute()), device, context, rows, memory, deterministic, small_head))
        try:
            await engine._await_ready(progress)
        except BaseException:
            engine.close()
            raise
        engine._tasks = [asyncio.create_task(engine._listen()), asyncio.create_task(engine._watch())]
        return engine

    # -- what text asks of an engine -------------------------------------------------------------------

    @property
    def limits(self) -> EngineLimits:
        assert self._ready is not None
        return self._ready.limits

    @property
    def vocab(self) -> int:
        assert self._ready is not None
        return self._ready.vocab

    def submit(self, request: Request, sink: Sink) -> None:
        """Send a request on its way. Raises as `Engine.submit` does."""
        if self.fault is not None:
            raise self.fault
        check_request(request, self.limits, self.vocab)
        if request.id in self._sinks:
            raise RequestError(f"A request with id {request.id!r} is running.", param="id")
        if not self._sinks:
            self._note_step()
        self._sinks[request.id] = sink
        self._send(Submit(request))

    def abort(self, request_id: str) -> None:
        """End a request soon. Ids that are not running are ignored."""
        if request_id in self._sinks:
            self._send(Abort(request_id))

    def stats(self) -> EngineStats:
        """Counters as of the last beat."""
        assert self._stats is not None
        return self._stats

    def close(self) -> None:
        """End the process; requests that are left end with ABORT."""
        for task in self._tasks:
            task.cancel()
        if self.fault is None:
            self.fault = EngineFault("The engine is closed.")
        self._tell_everybody(FinishReason.ABORT, None)
        if not self._writer.is_closing():
            self._writer.abort()
        pipe = self._writer.get_extra_info("pipe")
        pipe.close()  # at once: the child, which is waited for here, ends with it
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    # -- inside -----------------------------------------------------------------------------------------

    def _send(self, message: ToEngine) -> None:
        self._writer.write(frame(message))

    async def _await_ready(self, progress: Callable[[int, int], None] | None) -> None:
        while self._ready is None or self._stats is None:
            match message := await self._receive():
                case Progress(done, total) if progress is not None:
                    progress(done, total)
                case Failed(exit_code, text, hint):
                    raise ERRORS.get(exit_code, LlmrsError)(text, hint=hint)
                case Ready():
                    self._ready = message
                case Beat(stats):
                    self._stats = stats
                case _:
                    pass

    async def _receive(self) -> FromEngine:
        """The next message. Raises EngineFault if there can be none."""
        try:
            header = await self._reader.readexactly(HEADER)
            return _DECODER.decode(await self._reader.readexactly(body_length(header)))
        except (asyncio.IncompleteReadError, OSError):
            raise EngineFault("The engine's process ended unexpectedly.") from None
        except (ValueError, msgspec.ValidationError) as error:
            raise EngineFault("The engine's process sent what it should not.") from error

    async def _listen(self) -> None:
        try:
            while True:
                await self._pace.turn()  # a pipe that is always full must not keep the loop
                match await self._receive():
                    case Events(events):
                        self._note_step()
                        for event in events:
                            self._deliver(event)
                    case Beat() as beat:
                        self._take_beat(beat)
                    case Broken(message):
                        raise EngineFault(message)
                    case _:
                        pass
        except EngineFault as fault:
            self._break(fault)

    def _take_beat(self, beat: Beat) -> None:
        assert self._stats is not None
        stats = beat.stats
        if stats.steps != self._stats.steps or not (stats.running or stats.waiting):
            self._note_step()
        elif beat.computed > self._computed + COMPUTES:
            self._moved = min(time.monotonic(), self._stepped + (LONGEST - 1) * self._watchdog)
        self._stats, self._computed = stats, beat.computed

    def _note_step(self) -> None:
        self._moved = self._stepped = time.monotonic()

    async def _watch(self) -> None:
        """Break when there is work and neither a step nor an event has been seen for too long."""
        while True:
            await asyncio.sleep(min(1.0, self._watchdog / 4))
            if self._sinks and time.monotonic() - self._moved > self._watchdog:
                self._break(EngineFault(f"The engine has not moved for {self._watchdog:g} seconds."))
                return

    def _deliver(self, event: TokenEvent) -> None:
        sink = self._sinks.get(event.request_id)
        if event.finish is not None:
            self._sinks.pop(event.request_id, None)
        if sink is not None:
            sink(event)

    def _break(self, fault: EngineFault) -> None:
        if self.fault is None:
            self.fault = fault
            self._tell_everybody(FinishReason.ERROR, fault.message)
            self._process.kill()
            self.broken.set()

    def _tell_everybody(self, finish: FinishReason, error: str | None) -> None:
        sinks, self._sinks = self._sinks, {}
        last = TokenEvent("", finish=finish)
        if error is not None:
            last = last._replace(error=error, code=BROKEN)
        for request_id, sink in sinks.items():
            sink(last._replace(request_id=request_id))


_DECODER: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


async def _spawn(
    command: tuple[str, ...],
) -> tuple[subprocess.Popen[bytes], asyncio.StreamReader, asyncio.WriteTransport]:
    """A child in a session of its own (a Ctrl-C is for the server), and our two ends of its pipes."""
    their_read, our_write = os.pipe()
    our_read, their_write = os.pipe()
    try:
        process = subprocess.Popen(
            [*command, str(their_read), str(their_write)],
            stdin=subprocess.DEVNULL,
            stdout=2,  # whatever a library prints there must not meet our own stdout
            pass_fds=(their_read, their_write),
            start_new_session=True,
        )
    finally:
        os.close(their_read)
        os.close(their_write)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**20)
    protocol = asyncio.StreamReaderProtocol(reader)
    await loop.connect_read_pipe(lambda: protocol, os.fdopen(our_read, "rb"))
    writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(our_write, "wb"))
    return process, reader, writer
