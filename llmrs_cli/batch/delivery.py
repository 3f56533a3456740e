"""How finished rows leave a run: one record each, delivered in any order, written in the order asked for.

`StreamDelivery` is for outputs that cannot be taken up again (a pipe, a terminal): what waits for its turn
is kept in memory. Files have `journaled.JournaledDelivery`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Write = Callable[[str], None]
"""Takes an output line, without its end."""


@dataclass(frozen=True, slots=True)
class Record:
    """A row that is done."""

    number: int
    """Counts the rows of this run from 0."""
    digest: str
    """Of the row's input."""
    failed: bool
    prompt_tokens: int
    completion_tokens: int
    line: str
    """The output line, without its end."""


class Delivery(Protocol):
    """Where a run puts its records; used by one thread at a time."""

    @property
    def held(self) -> int:
        """Rows of this run that wait for those before them."""

    @property
    def held_bytes(self) -> int:
        """Memory that they take."""

    def has(self, number: int, digest: str) -> bool:
        """Whether the row was done in an earlier run. UsageError if it was another row then."""

    def put(self, record: Record) -> None:
        """Take a finished row; OSError if it cannot be written."""

    def until_sync(self) -> float | None:
        """Seconds after which `sync` is due; None: there is nothing to be made safe."""

    def sync(self) -> None:
        """Make what was put safe against a loss of power."""


class StreamDelivery:
    """Lines into a stream, in input order or as they come."""

    def __init__(self, write: Write, *, in_order: bool = True, write_failed: Write | None = None) -> None:
        """`write` takes a line without its end, `write_failed` those of rows that failed."""
        self._write, self._write_failed = write, write_failed or write
        self._in_order = in_order
        self._next = 0
        self._waiting: dict[int, Record] = {}
        self._bytes = 0

    @property
    def held(self) -> int:
        return len(self._waiting)

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def has(self, number: int, digest: str) -> bool:
        return False

    def put(self, record: Record) -> None:
        if not self._in_order:
            self._emit(record)
            return
        self._waiting[record.number] = record
        self._bytes += len(record.line)
        while (following := self._waiting.pop(self._next, None)) is not None:
            self._next += 1
            self._bytes -= len(following.line)
            self._emit(following)

    def until_sync(self) -> float | None:
        return None

    def sync(self) -> None:
        pass

    def flush(self) -> None:
        """Write what still waits, with gaps: the run ends here, and nothing that was computed is lost."""
        for number in sorted(self._waiting):
            self._emit(self._waiting.pop(number))
        self._bytes = 0

    def _emit(self, record: Record) -> None:
        try:
            (self._write_failed if record.failed else self._write)(record.line)
        except BaseException:
            self._waiting.clear()  # what failed once is not tried again
            raise
