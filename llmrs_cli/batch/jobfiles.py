"""The files of one durable run: output, errors, journal, manifest; what is there, and what may be done with it.

In this order: construct (refuses what would destroy something), `take_up` (settles what is done already,
before any model is loaded), `open` (the first write), then `finish`, if all is done; `close` in any case.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from llmrs_cli.batch import durable
from llmrs_cli.batch.adopt import adopted
from llmrs_cli.batch.job import Counts
from llmrs_cli.batch.journal import Journal
from llmrs_cli.batch.journaled import JournaledDelivery, changed_input
from llmrs_cli.batch.manifest import FINISHED, read_manifest
from llmrs_cli.batch.outfile import open_outfile
from llmrs_cli.batch.records import Row
from llmrs_cli.errors import UsageError, quoted

Numbered = Iterable[tuple[int, Row]]
"""Rows of a run with their numbers in it."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the user wants written, and what may happen to what is there."""

    output: Path
    errors: Path | None = None
    in_order: bool = True
    has_ids: bool = True
    """Lines say which row they answer."""
    resume: bool = False
    retry_failed: bool = False
    overwrite: bool = False
    force: bool = False

    @property
    def continues(self) -> bool:
        return self.resume or self.retry_failed


class JobFiles:
    """One run's files; the caller holds the lock of the output."""

    def __init__(self, target: Target, *, say: Callable[[str], None]) -> None:
        """UsageError if something is there and nobody said what to do with it. `say`: for notices."""
        self._target, self._say = target, say
        self._journal_path = beside(target.output, ".journal")
        self.manifest_path = beside(target.output, ".manifest.json")
        self._journal: Journal | None = None
        self._trusted = False
        """What the output holds beyond its journal may go: rows that are to be computed anew."""
        self.reused = Counts()
        """Rows that earlier runs did."""
        self.input_digest = ""
        """Of all rows that were read."""
        if not (target.continues or target.overwrite):
            self._refuse_what_exists()

    def _refuse_what_exists(self) -> None:
        if self._journal_path.exists():
            raise UsageError(
                f"{quoted(str(self._target.output))} is not finished.",
                hint="--resume continues, --overwrite starts over.",
            )
        for path in self._paths:
            if path.exists():
                raise UsageError(
                    f"{quoted(str(path))} exists.", hint="--overwrite replaces it, --resume continues it."
                )

    # -- before the model is loaded -------------------------------------------------------------------

    def take_up(
        self, settings: Mapping[str, Any], seed: int | None, rows: Callable[[], Numbered] | None
    ) -> bool:
        """Settle what is done already; True if that is everything.

        `settings`: what answers depend on. `rows`: begins reading the input anew; None if it can be read
        only once. UsageError if what is there is of another input, model or other settings.
        """
        self.settings = settings
        self.seed = secrets.randbits(64) if seed is None else seed
        if self._target.overwrite:
            return False
        if not self._journal_path.exists():
            if not self._target.output.exists():
                return False
            if self._is_finished(rows):
                return True
            self._adopt(rows)
        self._take_up_journal(rows)
        return False

    def _is_finished(self, rows: Callable[[], Numbered] | None) -> bool:
        """Whether an output without a journal is all there is to do, by its manifest."""
        manifest = read_manifest(self.manifest_path)
        if manifest is None:
            return False
        self._require_same(manifest.settings)
        self.seed = manifest.seed
        if manifest.status != FINISHED or self._target.retry_failed:
            return False
        if rows is not None:
            numbered = iter(rows())
            for _ in self.watch(islice(numbered, manifest.done)):
                pass
            if self.input_digest != manifest.input_digest:
                self._accept_changes()
            if next(numbered, None) is not None:
                return False
        self.reused = Counts(manifest.done, manifest.failed)
        return True

    def _accept_changes(self) -> None:
        """The input of a finished output is another now: refuse, or with --force keep its answers."""
        if not self._target.force:
            raise changed_input()
        self._say("Which rows have changed cannot be told any more: all answers are kept.")

    def _adopt(self, rows: Callable[[], Numbered] | None) -> None:
        """Make a journal of an output that has none."""
        if rows is None or not (self._target.in_order and self._target.has_ids):
            raise UsageError(
                f"{quoted(str(self._target.output))} has no journal, and its lines alone do not tell enough.",
                hint="--overwrite starts over.",
            )
        new = beside(self._journal_path, durable.TEMPORARY)
        journal = Journal.create(new, self._header())
        try:
            for record in adopted([path for path in self._paths if path.exists()], rows()):
                journal.append(record)
            journal.sync()
        finally:
            journal.close()
        durable.replace(new, self._journal_path)
        self._say(f"{quoted(str(self._target.output))} has no journal: its lines are taken as they are.")

    def _take_up_journal(self, rows: Callable[[], Numbered] | None) -> None:
        self._journal = Journal(self._journal_path)
        self._require_same(self._journal.header.get("settings", {}))
        self.seed = int(self._journal.header["seed"])
        stale = set() if rows is None else self._changed(self._journal, rows())
        if self._target.retry_failed:
            stale |= {record.number for record in self._journal.records() if record.failed}
        if stale:
            self._journal = self._journal.keep(lambda record: record.number not in stale)
            self._trusted = True
        for record in self._journal.records():
            self.reused = self.reused.plus(record)

    def _changed(self, journal: Journal, rows: Numbered) -> set[int]:
        """Numbers of rows that are done and whose input is another now, or gone."""
        stale, last = set(), -1
        for last, row in rows:
            if journal.offset(last) and journal.digest(last) != row.digest:
                stale.add(last)
        stale.update(number for number in journal.numbers() if number > last)
        if stale and not self._target.force:
            raise changed_input()
        return stale

    def _require_same(self, old: Mapping[str, Any]) -> None:
        changed = [key for key in sorted({*old, *self.settings}) if old.get(key) != self.settings.get(key)]
        if changed and not self._target.force:
            raise UsageError(
                f"{quoted(str(self._target.output))} was begun with another {' and another '.join(changed)}.",
                hint="--force goes on all the same, --overwrite starts over.",
            )

    # -- from then on ---------------------------------------------------------------------------------

    def open(self) -> JournaledDelivery:
        """Begin, or go on where an earlier run ended."""
        target = self._target
        trusted = self._trusted or target.overwrite or target.force
        with ExitStack() as stack:
            journal = self._journal or Journal.create(self._journal_path, self._header())
            self._journal = None
            stack.callback(journal.close)
            files = []
            for path in self._paths:
                files.append(open_outfile(path, trusted=trusted))
                stack.callback(files[-1].close)
            delivery = JournaledDelivery(journal, *files, in_order=target.in_order, forced=target.force)
            stack.pop_all()
        return delivery

    def close(self) -> None:
        """To be called in any case, also where nothing was opened."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def watch(self, rows: Numbered) -> Iterator[tuple[int, Row]]:
        """`rows`, while `input_digest` grows with them."""
        digest = blake2b(digest_size=16)
        for number, row in rows:
            digest.update(row.digest.encode())
            self.input_digest = digest.hexdigest()
            yield number, row

    def finish(self) -> None:
        """Everything is done, and the manifest says so: the journal has served."""
        durable.remove(self._journal_path)

    def _header(self) -> dict[str, Any]:
        return {"seed": self.seed, "settings": self.settings}

    @property
    def _paths(self) -> list[Path]:
        return [self._target.output, *([self._target.errors] if self._target.errors else [])]


def beside(path: Path, ending: str) -> Path:
    """The file whose name is that of `path` and `ending`."""
    return path.with_name(path.name + ending)
