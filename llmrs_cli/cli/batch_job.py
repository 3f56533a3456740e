"""One run of `llmrs batch`, from what was typed to its exit status.

What can be refused without a model is refused before one is looked for; what can be refused without weights,
before they are loaded; nothing is written until the engine stands.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from llmrs_cli.batch.columns import Template
from llmrs_cli.batch.job import Counts, Job
from llmrs_cli.batch.jobfiles import Numbered
from llmrs_cli.batch.records import Ask, Row
from llmrs_cli.batch.results import OUR_KEYS, Form, Writer
from llmrs_cli.batch.run import Run
from llmrs_cli.batch.sink import is_plain, open_input
from llmrs_cli.batch.source import Format, Source
from llmrs_cli.batch.speeds import remember
from llmrs_cli.cli.batch_options import BatchOptions
from llmrs_cli.cli.batch_outlet import Outlet, open_outlet
from llmrs_cli.cli.batch_progress import Progress, figures
from llmrs_cli.cli.faults import Terminated
from llmrs_cli.cli.models import Chosen, check_ids, choose, drawing_note, open_engine
from llmrs_cli.cli.options import ModelOptions
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.config import directories, private_directory
from llmrs_cli.errors import ExitCode, RowsFailedError, UsageError, counted, quoted

if TYPE_CHECKING:
    from llmrs_cli.hub.names import ModelName

MAX_TOKENS = 1024
"""Tokens of an answer where nobody says."""
ROWS = {"cuda": 64, "cpu": 16, "reference": 8}
"""Rows in flight by backend where nobody says."""
GROUP = 64
"""Rows of a file that are read, and whose prompts are made, together."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The command line of one run."""

    job: BatchOptions
    model: ModelOptions
    options: dict[str, Any]
    """Of generation, as far as they were said."""
    system: str | None
    token_ids: bool
    schema: dict[str, Any] | None = None
    """What answers are held to, where a row does not say."""
    template_arguments: dict[str, Any] = field(default_factory=dict)
    """Variables of the chat template, where a row does not say."""

    @property
    def source(self) -> Source:
        """What is to be read. UsageError unless exactly one input is named."""
        job = self.job
        template = None if job.prompt_template is None else Template(job.prompt_template)
        return Source(job.input_path, Format(job.format), template, job.id_field, job.shard, job.limit)

    def settings(self, chosen: Chosen) -> dict[str, Any]:
        """What an answer and its line depend on, beside the row; plain JSON values."""
        job = self.job
        said = {name: value for name, value in self.options.items() if value is not None}
        return {
            "model": chosen.name.text,
            "model version": model_version(chosen),
            **{name.replace("_", "-"): _plain(value) for name, value in said.items()},
            "system": self.system,
            "schema": self.schema,
            "template-kwargs": self.template_arguments or None,
            "return-token-ids": self.token_ids,
            "order": job.order,
            "format": job.format,
            "output-format": job.output_format,
            "prompt-template": job.prompt_template,
            "id-field": job.id_field,
            "shard": "{}/{}".format(*job.shard),
            "errors": job.errors is not None,
        }

    def job_for(self, name: ModelName, seed: int) -> Job:
        """What holds for every row."""
        from llmrs_cli.text.forms import schema_form
        from llmrs_cli.text.generate import GenerateOptions

        options = {"max_tokens": MAX_TOKENS, **self.options}
        options.pop("seed", None)
        form = None if self.schema is None else schema_form(self.schema)
        writer = Writer(name.text, int(time.time()), self.token_ids, Form(self.job.output_format))
        return Job(GenerateOptions(**options), seed, writer, self.system, form, self.template_arguments)


def run(asked: Asked, terminal: Terminal) -> int:
    """Answer every row; the exit status. Raises RowsFailedError if some have no answer."""
    job, source = asked.job, asked.source
    again = reader_of(source)
    with ExitStack() as stack:
        outlet = stack.enter_context(open_outlet(job, asked.options.get("seed"), terminal))
        stack.enter_context(hang_up_ends())
        chosen = choose(asked.model, terminal)
        if outlet.take_up(asked.settings(chosen), again):
            terminal.notice(f"{quoted(job.output)} is finished: {counted(outlet.reused.rows, 'row')}.")
            return _status(outlet.reused)
        rows = rows_in_flight(asked, chosen)
        engine = stack.enter_context(open_engine(chosen, terminal, rows=rows))
        check_ids(engine, asked.options)
        if note := drawing_note(engine, asked.options):
            terminal.notice(note)
        stream = _open(source, stack)
        numbered = mentioned(source.rows(stream), chosen.name, terminal)
        batch = Run(
            engine,
            asked.job_for(chosen.name, outlet.seed),
            outlet.open(chosen.device),
            in_flight=rows + rows // 4 + 1,
            group=1 if again is None else GROUP,
            max_failed=job.max_errors,
        )
        progress = Progress(outlet.reused, lambda: batch.read, _share_of(stream))
        _answer(batch, outlet.watch(numbered), outlet, progress, terminal)
        with suppress(UsageError):  # no folder for it: the run is done all the same
            private_directory(speeds_file().parent)
            remember(speeds_file(), speed_key(chosen), batch.counts, progress.seconds)
    return _status(outlet.reused, batch.counts)


def rows_in_flight(asked: Asked, chosen: Chosen) -> int:
    """As asked for, else what suits the backend."""
    return asked.model.rows or ROWS[chosen.device.partition(":")[0]]


def _answer(batch: Run, rows: Numbered, outlet: Outlet, progress: Progress, terminal: Terminal) -> None:
    """Run to the end, however that comes, and say what was done."""
    finished = False
    try:
        with terminal.working("Answering") as status:

            def report(counts: Counts) -> None:
                progress.counts = counts
                status.say(progress.line())
                if not terminal.err_is_terminal and progress.is_due():
                    terminal.notice(progress.line())

            def stopping(count: int) -> None:
                terminal.notice(
                    f"Stopping after {counted(count, 'row')} in flight; Ctrl-C again leaves at once."
                )

            batch.run(rows, report, stopping)
        finished = True
    finally:
        outlet.end(batch.counts, progress.seconds, finished=finished)
        terminal.notice(f"{figures(outlet.reused, batch.counts, progress.seconds)}.")


def _status(*counts: Counts) -> int:
    rows, failed = sum(count.rows for count in counts), sum(count.failed for count in counts)
    if failed:
        raise RowsFailedError(
            f"{failed} of {counted(rows, 'row')} failed.",
            hint="Their output lines say why, with the line of the input; --retry-failed asks them again.",
        )
    return ExitCode.OK


# -- the input ----------------------------------------------------------------------------------------


def reader_of(source: Source) -> Callable[[], Numbered] | None:
    """What reads the rows of a file once more; None for an input that can be read only once.

    Raises what is wrong with the input as a whole.
    """
    path = source.path
    if path is None:
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError("stdin is a terminal.", hint="Name a file of rows, or pipe one in.")
        return None
    if not is_plain(path) and not path.is_dir():
        return None

    def again() -> Iterator[tuple[int, Row]]:
        with open_input(path) as stream:
            yield from source.rows(stream)

    with open_input(path) as stream:
        source.rows(stream)
    return again


def _open(source: Source, stack: ExitStack) -> BufferedReader:
    if source.path is not None:
        return stack.enter_context(open_input(source.path))
    stdin: Any = sys.stdin.buffer
    return stdin if isinstance(stdin, BufferedReader) else BufferedReader(stdin)


def _share_of(stream: BufferedReader) -> Callable[[], float | None]:
    """Tells how much of a file has been read, from 0 to 1; None for what has no end that is known."""
    try:
        file = stream.fileno()
        size = os.fstat(file).st_size
        os.lseek(file, 0, os.SEEK_CUR)
    except OSError:
        return lambda: None
    return lambda: min(os.lseek(file, 0, os.SEEK_CUR) / size, 1.0) if size else None


def mentioned(rows: Numbered, name: ModelName, terminal: Terminal) -> Iterator[tuple[int, Row]]:
    """`rows`; what is passed over in them is said once."""
    said: set[str] = set()
    for number, row in rows:
        asked = row.ask.model if isinstance(row.ask, Ask) else None
        if asked not in (None, name.text, name.repo) and "model" not in said:
            terminal.warn(
                f"Line {row.line} asks for the model {quoted(asked)}; {name.text} answers every row."
            )
            said.add("model")
        for key in sorted(row.extras.keys() & OUR_KEYS - said):
            terminal.warn(f"Line {row.line} has a key {key!r}, which is one of ours: it is not copied.")
            said.add(key)
        yield number, row


# -- around it ----------------------------------------------------------------------------------------


def speeds_file() -> Path:
    """Where the speeds of earlier runs are kept."""
    return directories().cache / "speeds.json"


def speed_key(chosen: Chosen) -> str:
    """What a speed belongs to."""
    return f"{model_version(chosen)} on {chosen.device}"


def model_version(chosen: Chosen) -> str:
    """What tells this model from another of its name: the commit, or a key of its files."""
    from llmrs_cli.engine.weights.checkpoint import identity_of

    parts = chosen.path.parts
    if chosen.name.kind == "repo" and "snapshots" in parts[:-1]:
        return parts[parts.index("snapshots") + 1]
    files = sorted(chosen.path.glob("*.*")) if chosen.path.is_dir() else [chosen.path]
    return identity_of([file for file in files if file.is_file()])


@contextmanager
def hang_up_ends() -> Iterator[None]:
    """A terminal that goes away ends the run as SIGTERM does, unless nohup said otherwise."""
    before = signal.getsignal(signal.SIGHUP)
    if before is not signal.SIG_DFL or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGHUP, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise Terminated


def _plain(value: Any) -> Any:
    """A setting as it comes back from JSON."""
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
