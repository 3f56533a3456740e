"""A batch: rows in, lines out, many in flight at once; output in input order.

A row's whole way, from template to output line, runs in a thread of its own, so that stop strings end
answers at once and what is kept of a finished row is one line of text. Threads are a few more than the
engine's rows: it always has the next one waiting. Lines that are ready wait for those before them in a
window of bounded length. A row that fails is a line; only a broken engine ends a run.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
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


Finished = tuple[str, Outcome]
"""An output line and what it says."""


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
        self.counts = Counts()
        self._engine, self._job, self._write = engine, job, write
        self._threads, self._window = threads, window
        self._pending: deque[tuple[int, Future[Finished]]] = deque()
        """Input bytes and future line of each row that is not written, in input order."""
        self._bytes = 0
        self._active: set[Generation] = set()
        self._stopping = False
        self._lock = threading.Lock()

    def run(self, rows: Iterable[Row], report: Callable[[Counts], None] = lambda counts: None) -> Counts:
        """Answer every row; `report` hears of progress.

        If it is interrupted, or the engine breaks, what was finished is written before the exception goes on.
        """
        with ThreadPoolExecutor(self._threads, thread_name_prefix="batch-row") as pool:
            try:
                for row in rows:
                    self._pending.append((row.size, pool.submit(self._finish, row)))
                    self._bytes += row.size
                    self._write_ready(report)
                while self._pending:
                    self._write_first(report)
            except BaseException as error:
                finished = self._stop(pool)
                if not isinstance(error, OSError):  # else the output is what failed
                    self._write_lines(finished)
                raise
        return self.counts

    def _write_ready(self, report: Callable[[Counts], None]) -> None:
        while self._pending and (self._is_full or self._pending[0][1].done()):
            self._write_first(report)

    @property
    def _is_full(self) -> bool:
        return len(self._pending) >= self._window or self._bytes >= WINDOW_BYTES

    def _write_first(self, report: Callable[[Counts], None]) -> None:
        size, future = self._pending[0]
        finished = future.result()
        self._pending.popleft()
        self._bytes -= size
        self._write_lines([finished])
        report(self.counts)

    def _stop(self, pool: ThreadPoolExecutor) -> list[Finished]:
        """Start nothing more and end what runs; the rows that were finished by now, in order."""
        with self._lock:
            self._stopping = True
        pool.shutdown(wait=False, cancel_futures=True)
        futures = [future for _, future in self._pending if future.done() and not future.cancelled()]
        for generation in list(self._active):
            generation.cancel()
        return [future.result() for future in futures if future.exception() is None]

    def _write_lines(self, finished: Iterable[Finished]) -> None:
        for line, outcome in finished:
            self._write(line)
            self.counts = self.counts.plus(outcome)

    # -- in a row's thread ----------------------------------------------------------------------------

    def _finish(self, row: Row) -> Finished:
        outcome = self._outcome(row)
        return self._job.writer.line(row, outcome), outcome

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
        with self._lock:
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
