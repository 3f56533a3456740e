"""The life of a server: bind, listen, load, serve, drain, end; the exit status says how it ended.

The port is bound before the model is loaded, so a port in use is known at once and a client that comes
early hears 503 `loading`. The first SIGTERM or SIGINT stops admission and lets what is under way end,
until the deadline; a second one ends it at once. Where something was cut off, or nothing was loaded yet, the status
is that of the first signal; a failed engine ends the process with status 8.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrs_cli.engine.weights.small_head import open_model
from llmrs_cli.errors import EngineFault, ExitCode, UsageError
from llmrs_cli.server.app import build_app
from llmrs_cli.server.connections import http_server
from llmrs_cli.server.remote import CHILD, RemoteEngine
from llmrs_cli.server.service import Phase, Service
from llmrs_cli.server.settings import MAX_CONNECTIONS, ServerSettings
from llmrs_cli.text.generate import TextEngine

CUT_SECONDS = 5.0
"""For the last words to requests that are cut off."""
OPEN_FILES = MAX_CONNECTIONS + 128
"""As many as connections, and those of the process itself."""


@dataclass(frozen=True, slots=True)
class Load:
    """What to load, where."""

    path: Path
    device: str
    context: int | None = None
    rows: int | None = None
    memory: int | None = None
    deterministic: bool = False
    small_head: bool = False
    command: tuple[str, ...] = CHILD
    """What runs the engine; its two pipes are appended."""


@dataclass(frozen=True, slots=True)
class Tell:
    """What the command line wants to hear; each is called in the event loop."""

    loading: Callable[[int, int], None]
    """Bytes so far, and in all."""
    ready: Callable[[TextEngine, int], None]
    """The engine, and how many tokens its KV cache holds."""
    draining: Callable[[float], None] = lambda seconds: None
    """It ends, and answers are under way, which get so many seconds at most."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises UsageError if the address cannot be had."""
    with contextlib.ExitStack() as undo:
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, address = infos[0]
            listener = undo.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(MAX_CONNECTIONS)
        except OSError as error:
            raise _no_address(f"{host}:{port}", error) from error
        undo.pop_all()
    listener.setblocking(False)
    return listener


def _no_address(where: str, error: OSError) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            f"The address {where} is in use.", hint="Choose another with --port, or stop who uses it."
        )
    return UsageError(f"Cannot listen on {where}: {error.strerror}.", hint="Choose another address.")


def serve(
    listener: socket.socket, settings: ServerSettings, load: Load, tell: Tell, *, quiet: bool = False
) -> int:
    """Serve until told to stop; the exit status. Raises what opening the model raises."""
    allow_files()
    return asyncio.run(_Life(listener, settings, load, tell, quiet).run())


def allow_files() -> None:
    """Ask for as many open files as there may be connections: many systems give a process 1,024 unless it asks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class _Life:
    """One run of a server."""

    def __init__(
        self, listener: socket.socket, settings: ServerSettings, load: Load, tell: Tell, quiet: bool
    ) -> None:
        self._listener, self._settings, self._load, self._tell = listener, settings, load, tell
        self._quiet = quiet
        self._stop = asyncio.Event()
        self._now = asyncio.Event()
        self._status = ExitCode.TERMINATED
        """If the end cuts something off"""

    async def run(self) -> int:
        service = Service(self._settings)
        server = http_server(build_app(service, quiet=self._quiet))
        with self._signals():
            serving = asyncio.create_task(server.serve(sockets=[self._listener]))
            try:
                return await self._answer(service)
            finally:
                server.should_exit = True
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(serving, CUT_SECONDS)
                service.close()

    async def _answer(self, service: Service) -> int:
        engine = await self._open(service)
        if engine is None:
            return self._status
        broken = asyncio.ensure_future(engine.broken.wait())
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({broken, stop}, return_when=asyncio.FIRST_COMPLETED)
            if engine.broken.is_set():
                service.phase = Phase.FAILED
                await _within(CUT_SECONDS, service.idle.wait())
                assert engine.fault is not None
                raise EngineFault(
                    engine.fault.message, hint="Start the server again; `llmrs doctor` checks the device."
                )
            return await self._drain(service)
        finally:
            broken.cancel()
            stop.cancel()
            engine.close()
            gc.unfreeze()

    async def _open(self, service: Service) -> RemoteEngine | None:
        """The engine, with text over it; None if the server is told to stop meanwhile."""
        opening = asyncio.create_task(self._open_engine(service))
        stop = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({opening, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not opening.done():
            opening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await opening
            return None
        return opening.result()

    async def _open_engine(self, service: Service) -> RemoteEngine:
        load = self._load
        checkpoint = await asyncio.to_thread(open_model, load.path, small_head=load.small_head)
        engine = await RemoteEngine.start(
            load.path,
            device=load.device,
            context=load.context,
            rows=load.rows,
            memory=load.memory,
            deterministic=load.deterministic,
            small_head=load.small_head,
            progress=self._tell.loading,
            watchdog=self._settings.watchdog,
            command=load.command,
        )
        try:
            text = await asyncio.to_thread(TextEngine.over, checkpoint, lambda: engine)
            await asyncio.to_thread(text.prepare_grammars)
        except BaseException:
            engine.close()
            raise
        gc.collect()
        gc.freeze()  # tokenizer and code are here to stay: a collection that looked at them would hold the loop for 40 ms
        service.open(text)
        self._tell.ready(text, engine.limits.pool_tokens)
        return engine

    async def _drain(self, service: Service) -> int:
        """Let what is under way end, then cut off the rest."""
        service.phase = Phase.DRAINING
        if not service.idle.is_set():
            self._tell.draining(self._settings.drain)
        idle = asyncio.ensure_future(service.idle.wait())
        now = asyncio.ensure_future(self._now.wait())
        await asyncio.wait({idle, now}, timeout=self._settings.drain, return_when=asyncio.FIRST_COMPLETED)
        if not service.idle.is_set():
            service.cut_all()
            await asyncio.wait({idle}, timeout=CUT_SECONDS)
        idle.cancel()
        now.cancel()
        return self._status if service.cut else ExitCode.OK

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _on_signal(self, number: int) -> None:
        if self._stop.is_set():
            self._now.set()
            return
        self._status = ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.TERMINATED
        self._stop.set()


async def _within(seconds: float, waiting: Any) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(waiting, seconds)
