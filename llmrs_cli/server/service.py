"""The one server of a process: its model, its phase, what is under way; no HTTP.

Phases: loading → ready → draining, and failed from any of them. Requests are taken only when ready.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from enum import Enum
from typing import ParamSpec, TypeVar

from llmrs_cli.engine.stats import EngineStats
from llmrs_cli.errors import quoted
from llmrs_cli.server.bridge import Answers
from llmrs_cli.server.faults import HttpError, unavailable
from llmrs_cli.server.gate import Gate, Place
from llmrs_cli.server.metrics import Metrics
from llmrs_cli.server.pace import Pace
from llmrs_cli.server.settings import ServerSettings
from llmrs_cli.server.turns import Turns
from llmrs_cli.text.generate import GenerateOptions, TextEngine

P = ParamSpec("P")
T = TypeVar("T")
TEXT_THREADS = 4
"""Threads that render and tokenise."""
MAX_FORMS = 32
"""Forms of answers that one caller may have waiting to be tried."""


class Phase(Enum):
    """Where in its life the server is."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class Service:
    """Belongs to the event loop's thread."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.phase = Phase.LOADING
        self.created = int(time.time())
        self.metrics = Metrics(next(iter(settings.names), ""), self._stats)
        self.pace = Pace()
        self.idle = asyncio.Event()
        """Nothing is under way."""
        self.idle.set()
        self.cut = 0
        """Requests that were ended before their answer was."""
        self._engine: TextEngine | None = None
        self._gate = Gate(0)
        self._forms = Turns(MAX_FORMS)
        self._texts = ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="llmrs-text")
        self._trials = ThreadPoolExecutor(1, thread_name_prefix="llmrs-form")
        self._active: set[Answers] = set()
        self._busy = 0

    def open(self, engine: TextEngine) -> None:
        """The model has loaded."""
        self._engine = engine
        self._gate = Gate(engine.rows + self.settings.queue, engine.rows, len(self.settings.keys))
        self.phase = Phase.READY

    @property
    def engine(self) -> TextEngine:
        """The model. Raises HttpError 503 while it cannot be used."""
        match self.phase:
            case Phase.LOADING:
                raise unavailable("The model is loading.", "loading")
            case Phase.DRAINING:
                raise unavailable("The server is shutting down.", "shutting_down")
            case Phase.FAILED:
                raise unavailable("The engine has failed.", "engine_fault")
        assert self._engine is not None
        if self._engine.fault is not None:
            raise unavailable("The engine has failed.", "engine_fault")
        return self._engine

    def check_model(self, name: str | None) -> None:
        """Raise HttpError 404 for a model that is not the one that is served."""
        if name is not None and name not in self.settings.names:
            raise HttpError(
                404,
                f"There is no model {quoted(name)} here; {self.settings.names[0]} is served.",
                code="model_not_found",
                param="model",
            )

    async def in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run what may take a while, such as tokenising, beside the event loop, and come back in turn."""
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._texts, lambda: function(*args, **kwargs))
        await self.pace.turn()
        return result

    async def check_form(self, grammar: str, param: str, caller: bytes) -> None:
        """Raise RequestError naming `param` if answers cannot be held to `grammar`, HttpError 429 if too many
        of this caller are to be tried. What has been tried before is known at once; to try it may take seconds,
        in which those wait who ask for new forms, and of them longest who asks for many."""
        with self._under_way():
            if self.engine.knows_grammar(grammar):
                self.engine.check_grammar(grammar, param)
                return
            async with self._forms.taken(caller):
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._trials, self.engine.check_grammar, grammar, param)

    def check_room(self, caller: bytes = b"") -> None:
        """Raise HttpError 503 or 429 if no request of this caller can be taken now, whatever it holds."""
        if self.engine is not None:
            self._gate.check(caller)

    @contextmanager
    def place(self, caller: bytes = b"") -> Iterator[Place]:
        """Room for one sequence, from before the body is read, and for more as it asks. Raises HttpError 429."""
        with self._gate.taken(caller) as place, self._under_way():
            yield place

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        self._busy += 1
        self.idle.clear()
        try:
            yield
        finally:
            self._busy -= 1
            if not self._busy:
                self.idle.set()

    @asynccontextmanager
    async def answering(
        self, prompts: Sequence[Sequence[int]], options: GenerateOptions, salt: str
    ) -> AsyncIterator[Answers]:
        """Answers that end with the block, whatever happens in it. Raises as `TextEngine.start` does."""
        answers = Answers(self.settings.deadline, self.pace)
        self._active.add(answers)
        try:
            for prompt in prompts:
                await self.pace.turn()
                answers.begin(self.engine, prompt, options, salt)
            yield answers
        finally:
            answers.cancel()
            self._active.discard(answers)
            for reason in answers.reasons():
                self.metrics.finished(reason.value)

    def cut_all(self) -> None:
        """End what is under way; each request is told."""
        for answers in self._active:
            self.cut += 1
            answers.cancel()

    def close(self) -> None:
        """Give up the threads; the engine is its owner's to close."""
        for threads in (self._texts, self._trials):
            threads.shutdown(wait=False, cancel_futures=True)

    def _stats(self) -> EngineStats | None:
        return None if self._engine is None else self._engine.stats()


def salt_of(caller: bytes, salt: str) -> str:
    """Prefixes are shared only between requests of one key and one cache_salt."""
    owner = hashlib.sha256(caller).hexdigest() if caller else ""
    return f"{owner}/{salt}" if owner or salt else ""
