"""A batch: rows in, lines out, many in flight at once; output in input order.

A row's whole way, from template to output line, runs in a thread of its own, so that stop strings end
answers at once and what is kept of a finished row is one line of text. Threads are a few more than the
engine's rows: it always has the next one waiting. A line that is ready waits for those before it, and
reading stops when too many wait. A row that fails is a line; only a broken engine ends a run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from llmrs_cli.batch.logprobs import logprobs_field
from llmrs_cli.batch.records import Ask, Row
from llmrs_cli.batch.results import Answer, Choice, Outcome, Writer
from llmrs_cli.errors import EngineFault, LlmrsError

if TYPE_CHECKING:
    from llmrs_cli.text.generate import GenerateOptions, Generation, TextEngine

WINDOW = 4096
"""Rows read ahead of the first one that is not written yet."""
WINDOW_BYTES = 64 * 2**20
"""Input bytes of those rows."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a run has written so far."""

    rows: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def plus(self, outcome: Outcome) -> Counts:
        """These counts and one more row."""
        if not isinstance(outcome, Answer):
            return replace(self, rows=self.rows + 1, failed=self.failed + 1)
        return Counts(
            self.rows + 1,
            self.failed,
            self.prompt_tokens + outcome.prompt_tokens,
            self.completion_tokens + outcome.completion_tokens,
        )


@dataclass(frozen=True, slots=True)
class Job:
    """What holds for every row of a run."""

    options: GenerateOptions
    """Where a row says nothing itself."""
    seed: int
    """Rows without a seed of their own draw from this and their index, so order changes nothing."""
    writer: Writer
    system: str | None = None
    """Before the messages of rows that have none of their own."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A row that is done and waits for its turn."""

    line: str
    outcome: Outcome
    size: int
    """Bytes of the input line."""


class Run:
    """One run over one input. `counts` is up to date at any time."""

    def __init__(
        self,
        engine: TextEngine,
        job: Job,
        write: Callable[[str], None],
        *,
        threads: int,
        window: int = WINDOW,
    ) -> None:
        """`write` takes output lines; it is called by one thread at a time, in no thread in particular."""
        self.counts = Counts()
        self._engine, self._job, self._write = engine, job, write
        self._report: Callable[[Counts], None] = lambda counts: None
        self._threads, self._window = threads, window
        self._changed = threading.Condition()
        """Guards everything below; notified when a row was written or the run failed."""
        self._taken = 0
        """Rows read so far; they are numbered from 0 in input order."""
        self._next = 0
        """The row to write next."""
        self._ready: dict[int, Finished] = {}
        self._bytes = 0
        """Input bytes of rows that are read and not written."""
        self._active: set[Generation] = set()
        self._stopping = False
        self._failure: BaseException | None = None

    def run(self, rows: Iterable[Row], report: Callable[[Counts], None] | None = None) -> Counts:
        """Answer every row. A line is written as soon as it is its turn, also while reading waits for input;
        `report` hears of it.

        If the run is interrupted, or the engine breaks, what was finished is written before the exception
        goes on.
        """
        self._report = report or self._report
        with ThreadPoolExecutor(self._threads, thread_name_prefix="batch-row") as pool:
            try:
                for row in rows:
                    self._wait_until(lambda: self._has_room)
                    self._take(row, pool)
                self._wait_until(lambda: self._next == self._taken)
            except BaseException as error:
                self._stop(pool, writes=not isinstance(error, OSError))
                raise
        return self.counts

    @property
    def _has_room(self) -> bool:
        return self._taken - self._next < self._window and self._bytes < WINDOW_BYTES

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            while not condition() and self._failure is None:
                self._changed.wait()
            if self._failure is not None:
                raise self._failure

    def _take(self, row: Row, pool: ThreadPoolExecutor) -> None:
        with self._changed:
            number, self._taken = self._taken, self._taken + 1
            self._bytes += row.size
        pool.submit(self._work, number, row)

    def _stop(self, pool: ThreadPoolExecutor, *, writes: bool) -> None:
        """Start nothing more, end what runs, and write every row that was finished by now."""
        with self._changed:
            self._stopping = True
            for generation in self._active:
                generation.cancel()
            if writes:  # else the output is what failed
                for number in sorted(self._ready):
                    self._put(self._ready.pop(number))
        pool.shutdown(wait=False, cancel_futures=True)

    # -- in a row's thread ----------------------------------------------------------------------------

    def _work(self, number: int, row: Row) -> None:
        """A row from template to output line; then write what is ready."""
        try:
            outcome = self._outcome(row)
            finished = Finished(self._job.writer.line(row, outcome), outcome, row.size)
            with self._changed:
                if self._stopping:
                    return
                self._ready[number] = finished
                while (following := self._ready.pop(self._next, None)) is not None:
                    self._put(following)
                    self._next += 1
                self._changed.notify()
        except BaseException as error:
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify()

    def _put(self, finished: Finished) -> None:
        self._write(finished.line)
        self._bytes -= finished.size
        self.counts = self.counts.plus(finished.outcome)
        self._report(self.counts)

    def _outcome(self, row: Row) -> Outcome:
        if not isinstance(row.ask, Ask):
            return row.ask
        try:
            return self._answer(row, row.ask)
        except EngineFault:
            raise
        except LlmrsError as error:
            return error

    def _answer(self, row: Row, ask: Ask) -> Answer:
        given = dict(ask.options)
        arguments = given.pop("chat_template_kwargs", None)
        options = replace(self._job.options, **{"seed": row_seed(self._job.seed, row.index), **given})
        generation = self._begin(self._prompt_ids(ask, arguments), options)
        try:
            result = generation.result()
        finally:
            with self._changed:
                self._active.discard(generation)
        choices = [
            Choice(
                choice.text,
                choice.token_ids,
                choice.finish_reason.value,
                None if options.logprobs is None else logprobs_field(row.shape, choice.logprobs),
            )
            for choice in result.choices
        ]
        return Answer(choices, result.usage.prompt_tokens, result.usage.cached_tokens)

    def _begin(self, prompt: tuple[int, ...], options: GenerateOptions) -> Generation:
        with self._changed:
            if self._stopping:
                raise CancelledError
            generation = self._engine.start(prompt, options)
            self._active.add(generation)
            return generation

    def _prompt_ids(self, ask: Ask, arguments: dict[str, Any] | None) -> tuple[int, ...]:
        if ask.token_ids is not None:
            return ask.token_ids
        if ask.text is not None:
            return self._engine.encode(ask.text)
        messages = list(ask.messages or ())
        if ask.plain and not self._engine.can_chat and self._job.system is None:
            return self._engine.encode(messages[0]["content"])
        if (
            self._job.system is not None
            and messages[:1]
            and _role(messages[0]) not in ("system", "developer")
        ):
            messages.insert(0, {"role": "system", "content": self._job.system})
        return self._engine.render(messages, template_arguments=arguments).ids


def row_seed(job_seed: int, index: int) -> int:
    """The seed of a row that brings none: the same whatever was run before it or beside it."""
    digest = blake2b(f"{job_seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None
