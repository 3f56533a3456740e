"""Delivery into files that outlive a kill: a row is done once its record is in the journal.

The output file is made from the journal: it grows as the finished beginning, in input order, or with
`in_order` false in the order in which rows finish. Opening it again makes good what a kill left undone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

from llmrs_cli.batch.delivery import Record
from llmrs_cli.batch.journal import Journal
from llmrs_cli.batch.outfile import OutFile
from llmrs_cli.errors import UsageError

SYNC_SECONDS = 1.0
"""A loss of power costs at most what was finished in this time."""


class JournaledDelivery:
    """Implements `delivery.Delivery`."""

    def __init__(
        self,
        journal: Journal,
        out: OutFile,
        errors: OutFile | None = None,
        *,
        in_order: bool = True,
        forced: bool = False,
    ) -> None:
        """Take journal and files over, and bring the files up to the journal.

        `errors`: where rows that failed go, instead of to `out`. `forced`: rows that are done stay so
        though their input has changed.
        """
        self._journal, self._out, self._errors = journal, out, errors
        self._in_order, self._forced = in_order, forced
        self._next = 0
        """The first row that is not in the output yet."""
        self._held = 0
        self._own_from = journal.end
        self._dirty_since: float | None = None
        while self._next in journal:
            self._next += 1
        for file, failed in self._files():
            file.restore(self._lines(failed))

    @property
    def held(self) -> int:
        return self._held

    @property
    def held_bytes(self) -> int:
        return 0  # they are in the journal

    def has(self, number: int, digest: str) -> bool:
        if self._journal.offset(number) == 0:
            return False
        if self._journal.digest(number) != digest and not self._forced:
            raise changed_input()
        return True

    def put(self, record: Record) -> None:
        self._journal.append(record)
        if self._dirty_since is None:
            self._dirty_since = time.monotonic()
        if not self._in_order:
            self._write(record)
        elif record.number == self._next:
            self._write(record)
            self._next += 1
            self._catch_up()
        else:
            self._held += 1
        if self.until_sync() == 0:
            self.sync()

    def until_sync(self) -> float | None:
        if self._dirty_since is None:
            return None
        return max(self._dirty_since + SYNC_SECONDS - time.monotonic(), 0.0)

    def sync(self) -> None:
        self._dirty_since = None
        self._journal.sync()
        for file, _ in self._files():
            file.sync()

    def close(self) -> None:
        """End the files; they are whole, if the run is."""
        with ExitStack() as stack:  # each is closed, whatever becomes of the others; the journal last
            stack.callback(self._journal.close)
            for file, _ in reversed(self._files()):
                stack.callback(file.close)

    def _catch_up(self) -> None:
        """Write what waited for the row that was just written."""
        while self._next in self._journal:
            self._held -= self._journal.offset(self._next) >= self._own_from
            self._write(self._journal.read(self._next))
            self._next += 1

    def _write(self, record: Record) -> None:
        file = self._errors if record.failed and self._errors is not None else self._out
        file.write(_line(record))

    def _files(self) -> list[tuple[OutFile, bool | None]]:
        """Each file, with which rows it takes: failed, good, or with None all."""
        if self._errors is None:
            return [(self._out, None)]
        return [(self._out, False), (self._errors, True)]

    def _lines(self, failed: bool | None) -> Iterator[bytes]:
        """What a file should hold by now."""
        ordered = map(self._journal.read, range(self._next))
        for record in ordered if self._in_order else self._journal.records():
            if failed is None or record.failed is failed:
                yield _line(record)


def changed_input() -> UsageError:
    """What is said where a row that is done was another row then."""
    return UsageError(
        "The input is not what it was: rows that are answered are others now.",
        hint="--force answers changed rows anew and keeps the others, --overwrite starts over.",
    )


def _line(record: Record) -> bytes:
    return record.line.encode() + b"\n"
