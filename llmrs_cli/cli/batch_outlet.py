"""Where the lines of a batch go: a stream that keeps nothing, or a file with a journal beside it."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from llmrs_cli.batch.delivery import Delivery, StreamDelivery, Write
from llmrs_cli.batch.job import Counts
from llmrs_cli.batch.jobfiles import JobFiles, Numbered, Target
from llmrs_cli.batch.journaled import JournaledDelivery
from llmrs_cli.batch.lock import OutputLock
from llmrs_cli.batch.manifest import FINISHED, RUNNING, STOPPED, Manifest
from llmrs_cli.batch.sink import PipeSink, check_output, is_plain
from llmrs_cli.cli.batch_options import BatchOptions
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.errors import UsageError, quoted


class Outlet(Protocol):
    """One place for lines, in the order of its methods."""

    @property
    def seed(self) -> int:
        """Of the job; certain after `take_up`."""

    @property
    def reused(self) -> Counts:
        """What earlier runs did."""

    def take_up(self, settings: Mapping[str, Any], rows: Callable[[], Numbered] | None) -> bool:
        """Settle what is done already; True if that is everything. See `JobFiles.take_up`."""

    def open(self, device: str) -> Delivery:
        """The first moment at which anything is written."""

    def watch(self, rows: Numbered) -> Numbered:
        """`rows`, on their way into the run."""

    def end(self, computed: Counts, seconds: float, *, finished: bool) -> None:
        """The run is over."""


@contextmanager
def open_outlet(job: BatchOptions, seed: int | None, terminal: Terminal) -> Iterator[Outlet]:
    """The outlet that the options name; UsageError for what would destroy something or cannot be."""
    output, errors = job.output_path, job.errors_path
    named = [path for path in (job.input_path, errors) if path is not None]
    if output is not None:
        check_output(output, *named)
    if errors is not None:
        check_output(errors, *(path for path in (job.input_path,) if path is not None))
    with ExitStack() as stack:
        if output is not None and is_plain(output):
            stack.enter_context(OutputLock(output))
            outlet = FileOutlet(job, output, seed, terminal)
            stack.callback(outlet.close)
            yield outlet
            return
        if job.continues:
            raise UsageError("Only a file can be resumed.", hint="Name one with -o.")
        write = terminal.data if output is None else stack.enter_context(PipeSink(output)).write
        if errors is not None and is_plain(errors) and errors.exists() and not job.overwrite:
            raise UsageError(f"{quoted(str(errors))} exists.", hint="--overwrite replaces it.")

        def open_errors() -> Write | None:
            return None if errors is None else stack.enter_context(PipeSink(errors, new=True)).write

        yield StreamOutlet(write, open_errors, in_order=job.order == "input", seed=seed)


class StreamOutlet:
    """stdout, a device or a pipe."""

    def __init__(
        self,
        write: Write,
        open_errors: Callable[[], Write | None],
        *,
        in_order: bool,
        seed: int | None,
    ) -> None:
        """`open_errors`: gives what takes the lines of failed rows; None: `write`."""
        self._seed = secrets.randbits(64) if seed is None else seed
        self._write, self._open_errors, self._in_order = write, open_errors, in_order
        self._delivery: StreamDelivery | None = None

    @property
    def seed(self) -> int:
        return self._seed

    @property
    def reused(self) -> Counts:
        return Counts()

    def take_up(self, settings: Mapping[str, Any], rows: Callable[[], Numbered] | None) -> bool:
        return False

    def open(self, device: str) -> Delivery:
        self._delivery = StreamDelivery(
            self._write, in_order=self._in_order, write_failed=self._open_errors()
        )
        return self._delivery

    def watch(self, rows: Numbered) -> Numbered:
        return rows

    def end(self, computed: Counts, seconds: float, *, finished: bool) -> None:
        if self._delivery is not None:
            self._delivery.flush()


class FileOutlet:
    """A file, with a journal until it is finished and a manifest beside it."""

    def __init__(self, job: BatchOptions, output: Path, seed: int | None, terminal: Terminal) -> None:
        target = Target(
            output,
            job.errors_path,
            in_order=job.order == "input",
            has_ids=job.output_format != "text",
            resume=job.resume,
            retry_failed=job.retry_failed,
            overwrite=job.overwrite,
            force=job.force,
        )
        self._files = JobFiles(target, say=terminal.notice)
        self._given_seed = seed
        self._source = str(job.input_path or "-")
        self._terminal = terminal
        self._delivery: JournaledDelivery | None = None

    @property
    def seed(self) -> int:
        return self._files.seed

    @property
    def reused(self) -> Counts:
        return self._files.reused

    def take_up(self, settings: Mapping[str, Any], rows: Callable[[], Numbered] | None) -> bool:
        return self._files.take_up(settings, self._given_seed, rows)

    def open(self, device: str) -> Delivery:
        self._delivery = self._files.open()
        self._manifest = Manifest(self._files.settings, self.seed, tuple(sys.argv[1:]), device, self._source)
        self._write_manifest(RUNNING, Counts(), 0.0)
        return self._delivery

    def watch(self, rows: Numbered) -> Numbered:
        return self._files.watch(rows)

    def end(self, computed: Counts, seconds: float, *, finished: bool) -> None:
        if self._delivery is None:
            return
        if finished:
            self._delivery.close()
            self._write_manifest(FINISHED, computed, seconds)
            self._files.finish()
            return
        with contextlib.suppress(OSError):  # what ended the run is told, not what came of it
            self._delivery.close()
            self._write_manifest(STOPPED, computed, seconds)
        self._terminal.notice(f"Go on with: {resume_command(sys.argv[1:])}")

    def close(self) -> None:
        """To be called in any case."""
        self._files.close()

    def _write_manifest(self, status: str, computed: Counts, seconds: float) -> None:
        self._manifest.write(
            self._files.manifest_path,
            status,
            self.reused,
            computed,
            seconds=seconds,
            input_digest=self._files.input_digest,
        )


def resume_command(arguments: list[str]) -> str:
    """The command line that goes on where this one ends."""
    kept = [argument for argument in arguments if argument not in ("--overwrite", "--resume")]
    return shlex.join(["llmrs", *kept, "--resume"])
