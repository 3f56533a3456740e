"""The thread that owns an engine: it opens it, steps it while there is work, and closes it.

Requests go in through a queue, events come out through a function per request, called in the engine's
thread. Nothing else is shared, so the engine itself needs no locks. Opening in the thread matters: a
device's context and the thread pools of compiled loops belong to the thread that first uses them.

Idle, the thread sleeps in `get`; no waiting here polls. If it dies, for whatever reason, every request
gets one last event with finish ERROR and `submit` raises EngineFault.

Forks. A forked child has no copy of this thread, of a device's context or of compiled loops' threads. So
child processes are spawned before an engine is opened, never forked; an EngineThread that finds itself
in another process than the one that made it refuses to work.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self

from llmrs_cli.engine.api import Engine
from llmrs_cli.engine.limits import EngineLimits
from llmrs_cli.engine.stats import EngineStats
from llmrs_cli.engine.types import BROKEN, FinishReason, Request, TokenEvent
from llmrs_cli.errors import EngineFault, RequestError

Sink = Callable[[TokenEvent], None]
"""Takes the events of one request in the engine's thread: it must return at once and not raise. If it
raises, its request is aborted and it is not called again."""
Command = Callable[[Engine], None]


class EngineThread:
    """An engine in a thread of its own; all methods may be called from any thread of this process."""

    def __init__(self, open_engine: Callable[[], Engine]) -> None:
        """Start the thread, open the engine in it and wait for that; raises what opening raises.

        Objects that exist by then are taken out of the garbage collector's rounds until `close`.
        """
        self._pid = os.getpid()
        self._inbox: SimpleQueue[Command | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._sinks: dict[str, Sink] = {}
        self._fault: EngineFault | None = None
        """Guarded by the lock, as the sinks are: nobody is added after everybody was told."""
        opened: Future[Engine] = Future()
        self._thread = threading.Thread(
            target=self._main, args=(open_engine, opened), name="llmrs-engine", daemon=True
        )
        self._thread.start()
        try:
            self._engine = opened.result()
        except BaseException:
            self._inbox.put(None)  # an interrupted wait: the engine closes as soon as it is open
            raise
        gc.collect()
        gc.freeze()

    @property
    def limits(self) -> EngineLimits:
        return self._engine.limits

    @property
    def vocab(self) -> int:
        """Ids that a prompt may hold: 0 … vocab - 1."""
        return self._engine.vocab

    @property
    def fault(self) -> EngineFault | None:
        """Why no request can be served any more; known before the requests in flight are told."""
        return self._fault or self._engine.fault

    def submit(self, request: Request, sink: Sink) -> None:
        """Queue a request; its events go to `sink`. Raises as `Engine.submit` does, in the caller, in whose
        thread a grammar is compiled too."""
        self._require_this_process()
        self._engine.validate(request)
        matcher = self._engine.matcher(request)
        with self._lock:
            if self._fault is not None:
                raise self._fault
            if request.id in self._sinks:
                raise RequestError(f"A request with id {request.id!r} is running.", param="id")
            self._sinks[request.id] = sink
            self._inbox.put(lambda engine: engine.accept(request, matcher))

    def abort(self, request_id: str) -> None:
        """End a request soon; its sink gets a last event. Unknown and ended ids are ignored."""
        self._require_this_process()
        self._inbox.put(lambda engine: engine.abort(request_id))

    def stats(self) -> EngineStats:
        """Counters so far."""
        return self._engine.stats()

    def close(self) -> None:
        """Stop after the step in progress; requests that are left end with finish ABORT."""
        if os.getpid() != self._pid:
            return
        self._inbox.put(None)
        self._thread.join()
        gc.unfreeze()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require_this_process(self) -> None:
        if os.getpid() != self._pid:
            raise EngineFault("The engine belongs to another process: it does not survive a fork.")

    # -- in the engine's thread -----------------------------------------------------------------------

    def _main(self, open_engine: Callable[[], Engine], opened: Future[Engine]) -> None:
        try:
            engine = open_engine()
        except BaseException as error:
            opened.set_exception(error)
            return
        opened.set_result(engine)
        fault = EngineFault("The engine is closed.")
        finish = FinishReason.ABORT
        try:
            self._serve(engine)
        except BaseException as error:
            fault, finish = _fault(error), FinishReason.ERROR
        finally:
            self._tell_everybody(fault, finish)
            engine.close()

    def _serve(self, engine: Engine) -> None:
        while self._take_in(engine):
            self._deliver(engine, engine.step())
            if engine.fault is not None:
                raise engine.fault

    def _take_in(self, engine: Engine) -> bool:
        """Run what is in the inbox, sleeping until there is work; False when it is time to stop."""
        while True:
            try:
                command = self._inbox.get_nowait()
            except Empty:
                if engine.has_work:
                    return True
                engine.check()
                command = self._inbox.get()
            if command is None:
                return False
            command(engine)

    def _deliver(self, engine: Engine, events: Sequence[TokenEvent]) -> None:
        with self._lock:
            sinks = [self._sink_of(event) for event in events]
        failed: set[str] = set()
        for event, sink in zip(events, sinks, strict=True):
            if sink is None or event.request_id in failed or _call(sink, event):
                continue
            failed.add(event.request_id)
            with self._lock:
                self._sinks.pop(event.request_id, None)
            engine.abort(event.request_id)

    def _sink_of(self, event: TokenEvent) -> Sink | None:
        """Who takes the event; nobody's sink any more after a last one."""
        if event.finish is None:
            return self._sinks.get(event.request_id)
        return self._sinks.pop(event.request_id, None)

    def _tell_everybody(self, fault: EngineFault, finish: FinishReason) -> None:
        with self._lock:
            self._fault = fault
            sinks, self._sinks = self._sinks, {}
        last = TokenEvent("", finish=finish)
        if finish is FinishReason.ERROR:
            last = last._replace(error=fault.message, code=BROKEN)
        for request_id, sink in sinks.items():
            _call(sink, last._replace(request_id=request_id))


def _call(sink: Sink, event: TokenEvent) -> bool:
    """Whether the sink took the event."""
    try:
        sink(event)
    except Exception:
        return False
    return True


def _fault(error: BaseException) -> EngineFault:
    """The fault to report when the thread dies of `error`."""
    if isinstance(error, EngineFault):
        return error
    fault = EngineFault(f"The engine's thread died of {type(error).__name__}.")
    fault.__cause__ = error
    return fault
