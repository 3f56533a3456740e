"""A batch: rows in, records out, as many in flight as the engine takes.

Two threads beside the engine's. The caller's reads rows and makes prompts of them, a group at a time; the
other is woken when an answer is whole, makes a record of it and starts the next row. A row that fails is a
record; only a broken engine, an output that cannot be written or too many failures end a run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from itertools import islice
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from llmrs_cli.batch.delivery import Delivery, Record
from llmrs_cli.batch.job import Counts, Job
from llmrs_cli.batch.prompts import Prompter
from llmrs_cli.batch.records import Ask, Row
from llmrs_cli.batch.results import Answer, Outcome
from llmrs_cli.batch.twins import Twins, twin_key
from llmrs_cli.batch.window import Pool
from llmrs_cli.batch.work import Events, Work
from llmrs_cli.errors import EngineFault, LlmrsError, RowsFailedError, counted

if TYPE_CHECKING:
    from llmrs_cli.text.generate import GenerationResult, TextEngine

WINDOW = 4096
"""Rows read ahead of the first one that is not written yet."""
WINDOW_BYTES = 64 * 2**20
"""Bytes of input that is not answered and of output that waits for its turn."""
GRACE = 10.0
"""Seconds that rows in flight are given when a run is interrupted."""


class Run:
    """One run over one input. `counts` is up to date at any time."""

    def __init__(
        self,
        engine: TextEngine,
        job: Job,
        delivery: Delivery,
        *,
        in_flight: int,
        window: int = WINDOW,
        group: int = 1,
        max_failed: int | None = None,
    ) -> None:
        """`in_flight`: answers asked for at once, a few more than the engine's rows, so that it always has
        the next one waiting. `group`: rows read at a time; 1 if reading may wait. More than `max_failed`
        rows that fail end the run."""
        self.counts = Counts()
        """Rows that were done by this run."""
        self.read = 0
        """Rows that were read, those of earlier runs included."""
        self._engine, self._job, self._delivery = engine, job, delivery
        self._prompter = Prompter(engine, job)
        self._limit, self._window = in_flight, window
        self._group = min(group, window)
        self._max_failed = max_failed
        self._arrived: SimpleQueue[Work | None] = SimpleQueue()
        """Rows that the second thread should look at; None ends it."""
        self._changed = threading.Condition()
        """Guards everything below; notified when a row was delivered or the run failed."""
        self._pool: Pool[Work] = Pool(window)
        self._twins: Twins[Work] = Twins(window)
        self._flying: dict[Work, int] = {}
        """What is in the engine, with its number of answers."""
        self._open = 0
        """Rows that are read and not delivered."""
        self._bytes = 0
        """Their size."""
        self._stopping = False
        self._failure: BaseException | None = None

    def run(
        self,
        rows: Iterable[tuple[int, Row]],
        report: Callable[[Counts], None] | None = None,
        stopping: Callable[[int], None] | None = None,
    ) -> Counts:
        """Answer every row; they are numbered from 0. A record is delivered as soon as it is there, also
        while reading waits for input; `report` hears of it, in the second thread.

        An interrupt ends reading; rows in flight, whose number `stopping` hears, are given `GRACE` to
        finish, or until the next interrupt.
        """
        thread = threading.Thread(
            target=self._consume, args=(report or (lambda counts: None),), name="batch-rows", daemon=True
        )
        thread.start()
        try:
            unread = self._feed(rows)
            self._wait_until(lambda: self._open == 0)
        except BaseException:
            self._drain(stopping or (lambda count: None))
            raise
        finally:
            self._arrived.put(None)
            thread.join()
        if unread is not None:
            raise unread
        return self.counts

    # -- in the caller's thread -----------------------------------------------------------------------

    def _feed(self, rows: Iterable[tuple[int, Row]]) -> LlmrsError | None:
        """Read everything; what is wrong with the input is returned, for when all that was read is done."""
        numbered = iter(rows)
        unread: LlmrsError | None = None
        ended = False
        while not ended:
            self._wait_until(lambda: self._has_room)
            group: list[tuple[int, Row]] = []
            try:
                group.extend(islice(numbered, self._group))
                ended = not group
            except LlmrsError as error:
                unread, ended = error, True
            self.read += len(group)
            self._admit(
                [Work(number, row) for number, row in group if not self._delivery.has(number, row.digest)]
            )
        return unread

    @property
    def _has_room(self) -> bool:
        rows = self._open + self._delivery.held + self._group
        return rows <= self._window and self._bytes + self._delivery.held_bytes < WINDOW_BYTES

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or condition())
            if self._failure is not None:
                raise self._failure

    def _admit(self, works: list[Work]) -> None:
        """Make prompts, and let into the engine or its waiting room."""
        with self._changed:
            self._open += len(works)
            self._bytes += sum(work.row.size for work in works)
        asked = [(work, work.row.ask) for work in works if isinstance(work.row.ask, Ask)]
        prompts = self._prompter.ids_of([ask for _, ask in asked])
        with self._changed:
            for work in works:
                if not isinstance(work.row.ask, Ask):
                    self._end(work, work.row.ask)
            for (work, ask), prompt in zip(asked, prompts, strict=True):
                if isinstance(prompt, LlmrsError):
                    self._end(work, prompt)
                else:
                    self._line_up(work, ask, prompt)
            self._dispatch()

    def _line_up(self, work: Work, ask: Ask, prompt: tuple[int, ...]) -> None:
        work.prompt, work.options = prompt, self._job.options_for(work.row.index, ask)
        key = twin_key(prompt, work.options, ask, self._engine.defaults)
        if key is not None and (first := self._twins.running(key)) is not None:
            first.twins.append(work)
        elif key is not None and (answer := self._twins.answer(key)) is not None:
            work.merged = True
            self._end(work, answer)
        else:
            if key is not None:
                work.key = key
                self._twins.begin(key, work)
            self._pool.add(work.number, prompt, work)

    def _drain(self, stopping: Callable[[int], None]) -> None:
        """Start nothing more; wait for what runs, then end it."""
        with self._changed:
            self._stopping = True
            try:
                if self._flying and self._failure is None:
                    stopping(len(self._flying))
                self._changed.wait_for(lambda: self._failure is not None or not self._flying, GRACE)
            finally:
                for work in self._flying:
                    work.cancel()

    # -- in either thread, under the lock -------------------------------------------------------------

    def _end(self, work: Work, result: GenerationResult | LlmrsError) -> None:
        work.result = result
        self._arrived.put(work)

    def _dispatch(self) -> None:
        """Fill the engine."""
        while self._pool and not self._stopping and sum(self._flying.values()) < self._limit:
            work = self._pool.take()
            try:
                self._start(work)
            except BaseException as error:
                del self._flying[work]
                if isinstance(error, EngineFault) or not isinstance(error, LlmrsError):
                    raise
                self._end(work, error)

    def _start(self, work: Work) -> None:
        assert work.options is not None
        self._flying[work] = work.options.n
        work.events = Events(
            lambda: self._arrived.put(work), choices=work.options.n, eager=bool(work.options.stop)
        )
        work.generation = self._engine.start(work.prompt, work.options, sink=work.events)

    # -- in the second thread -------------------------------------------------------------------------

    def _consume(self, report: Callable[[Counts], None]) -> None:
        try:
            while (work := self._next()) is not None:
                if self._is_done(work):
                    self._deliver(work)
                    report(self.counts)
            self._delivery.sync()
        except BaseException as error:
            with self._changed:
                self._failure, self._stopping = error, True
                self._changed.notify()

    def _next(self) -> Work | None:
        """The next row to look at; makes the output safe when it is time."""
        while True:
            try:
                return self._arrived.get(timeout=self._delivery.until_sync())
            except Empty:
                self._delivery.sync()

    def _is_done(self, work: Work) -> bool:
        """Whether there is a result now."""
        with self._changed:  # whoever started it has left the lock
            if work.settled or (work.result is None and work.generation is None):
                return False
        if work.result is None:
            try:
                work.advance()
            except EngineFault:
                raise
            except LlmrsError as error:
                work.result = error
                work.cancel()
        return work.result is not None

    def _deliver(self, work: Work) -> None:
        with self._changed:
            work.settled = True
            if work.key is not None:
                self._twins.end(work.key, work.answer)
        family = [work, *work.twins]
        if not work.aborted:
            for one in family:
                self._put(one, work)
        with self._changed:
            self._flying.pop(work, None)
            self._open -= len(family)
            self._bytes -= sum(one.row.size for one in family)
            self._dispatch()
            self._changed.notify()

    def _put(self, one: Work, first: Work) -> None:
        """Deliver the row of `one`; the answer is that of `first`."""
        outcome = first.outcome_for(self._job.writer.shape_of(one.row), as_json=self._job.is_json(one.row))
        record = record_of(one, outcome, self._job.writer.line(one.row, outcome))
        self._delivery.put(record)
        self.counts = self.counts.plus(record, merged=one.merged or one is not first)
        if self._max_failed is not None and self.counts.failed > self._max_failed:
            raise RowsFailedError(
                f"More than {counted(self._max_failed, 'row')} failed.", hint="Their output lines say why."
            )


def record_of(work: Work, outcome: Outcome, line: str) -> Record:
    """What is kept of a row that is done."""
    prompt, completion = 0, 0
    if isinstance(outcome, Answer):
        prompt, completion = outcome.prompt_tokens, outcome.completion_tokens
    return Record(work.number, work.row.digest, not isinstance(outcome, Answer), prompt, completion, line)
