"""Answers every row of a JSON Lines file.

llmrs batch INPUT -o OUTPUT [-m MODEL]
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from llmrs_cli.cli.models import choose, open_engine
from llmrs_cli.cli.options import ModelOptions, Sampling, model_options, quiet_option, sampling_options
from llmrs_cli.cli.parameters import text
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.engine.types import MAX_LOGPROBS
from llmrs_cli.errors import ExitCode, RowsFailedError, UsageError, quoted

if TYPE_CHECKING:
    from llmrs_cli.batch.records import Row
    from llmrs_cli.batch.run import Run
    from llmrs_cli.hub.names import ModelName

MAX_TOKENS = 1024
"""Tokens of an answer where nobody says."""
ROWS = {"cuda": 64, "cpu": 16, "reference": 8}
"""Rows in flight by backend where nobody says."""


@click.command("batch")
@click.argument("source", metavar="[INPUT]", required=False)
@click.option("-i", "--input", "named_source", metavar="FILE", help="The same as INPUT; - is stdin.")
@click.option("-o", "--output", default="-", metavar="FILE", help="Where output lines go; - is stdout.")
@click.option("--overwrite", is_flag=True, help="Replace the output file if there is one.")
@model_options(positional=False)
@click.option("-s", "--system", type=text, metavar="TEXT", help="System prompt of rows without one.")
@click.option("--return-token-ids", is_flag=True, help="Add token_ids, end token included.")
@click.option(
    "--logprobs",
    type=click.IntRange(0, MAX_LOGPROBS),
    metavar="N",
    help="Add log-probabilities with this many alternatives.",
)
@sampling_options
@quiet_option
def command(
    source: str | None,
    named_source: str | None,
    output: str,
    overwrite: bool,
    model: ModelOptions,
    system: str | None,
    return_token_ids: bool,
    logprobs: int | None,
    sampling: Sampling,
    quiet: bool,
) -> int:
    """Answer every row of a JSON Lines file.

    One line in, one line out, in input order. A row has a "prompt", "messages" or "prompt_token_ids", or is
    a request of OpenAI's batch API; it may bring its own options, and they win over the flags here. A row
    that cannot be answered gets a line with an error, and the others go on; the status is then 3. See
    "llmrs help formats".

    \b
      llmrs batch prompts.jsonl -o answers.jsonl
      llmrs batch requests.jsonl -o results.jsonl -m qwen2.5-3b -t 0
      jq -c '{prompt: .question, id}' faq.json | llmrs batch - | jq -r .text
    """
    from llmrs_cli.batch.delivery import StreamDelivery
    from llmrs_cli.batch.job import Job
    from llmrs_cli.batch.results import Writer
    from llmrs_cli.batch.run import Run
    from llmrs_cli.text.generate import GenerateOptions

    terminal = Terminal.standard(quiet=quiet)
    with ExitStack() as stack:
        stream = stack.enter_context(_open_source(_one_source(source, named_source), output, overwrite))
        chosen = choose(model, terminal)
        rows = model.rows or ROWS[chosen.device.partition(":")[0]]
        engine = stack.enter_context(open_engine(chosen, terminal, rows=rows))
        write = stack.enter_context(_open_sink(output, overwrite, terminal))
        given = {"max_tokens": MAX_TOKENS, **sampling.given(), "logprobs": logprobs}
        seed = given.pop("seed", secrets.randbits(64))
        writer = Writer(chosen.name.text, int(time.time()), return_token_ids)
        job = Job(GenerateOptions(**given), seed, writer, system)
        delivery = StreamDelivery(write)
        stack.callback(delivery.flush)
        run = Run(engine, job, delivery, in_flight=rows + rows // 4 + 1)
        _answer_all(run, _read_rows(stream, chosen.name, terminal), terminal)
    if run.counts.failed:
        raise RowsFailedError(
            f"{run.counts.failed} of {run.counts.rows} rows failed.",
            hint="Their output lines say why, with the line of the input.",
        )
    return ExitCode.OK


def _answer_all(run: Run, rows: Iterator[Row], terminal: Terminal) -> None:
    """Run to the end, however that comes, and say what was written."""
    began = time.monotonic()

    def line() -> str:
        counts, seconds = run.counts, max(time.monotonic() - began, 1e-9)
        failed = f", {counts.failed} failed" if counts.failed else ""
        tokens = counts.completion_tokens
        return (
            f"{counts.rows} rows{failed}, {tokens} tokens in {seconds:.1f} s ({tokens / seconds:.1f} tok/s)"
        )

    try:
        with terminal.working("Answering") as status:
            run.run(rows, lambda counts: status.say(f"Answering: {line()}"))
    finally:
        terminal.notice(f"{line()}.")


def _read_rows(stream: BinaryIO, name: ModelName, terminal: Terminal) -> Iterator[Row]:
    """The rows of `stream`; what is passed over in them is said once."""
    from llmrs_cli.batch.lines import read_lines
    from llmrs_cli.batch.records import Ask, RowReader
    from llmrs_cli.batch.results import OUR_KEYS

    reader = RowReader()
    said: set[str] = set()
    for line in read_lines(stream):
        row = reader.read(line)
        asked = row.ask.model if isinstance(row.ask, Ask) else None
        if asked not in (None, name.text, name.repo) and "model" not in said:
            terminal.warn(
                f"Line {row.line} asks for the model {quoted(asked)}; {name.text} answers every row."
            )
            said.add("model")
        for key in sorted(row.extras.keys() & OUR_KEYS - said):
            terminal.warn(f"Line {row.line} has a key {key!r}, which is one of ours: it is not copied.")
            said.add(key)
        yield row


def _one_source(positional: str | None, named: str | None) -> str:
    if positional is not None and named is not None:
        raise UsageError("Two inputs are named.", hint="Give INPUT or -i, not both.")
    source = positional if positional is not None else named
    if source is None:
        raise UsageError("No input is named.", hint="Name a file of JSON lines, or - for stdin.")
    return source


@contextmanager
def _open_source(source: str, output: str, overwrite: bool) -> Iterator[BinaryIO]:
    """The input, once it is certain that the output may be written."""
    from llmrs_cli.batch.sink import check_output, open_input

    if source == "-":
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError("stdin is a terminal.", hint="Name a file of JSON lines, or pipe one in.")
        if output != "-":
            check_output(Path(output), None, overwrite=overwrite)
        yield sys.stdin.buffer
        return
    with open_input(Path(source)) as stream:
        if output != "-":
            check_output(Path(output), Path(source), overwrite=overwrite)
        yield stream


@contextmanager
def _open_sink(output: str, overwrite: bool, terminal: Terminal) -> Iterator[Callable[[str], None]]:
    from llmrs_cli.batch.sink import FileSink

    if output == "-":
        yield terminal.data
    else:
        with FileSink(Path(output), overwrite=overwrite) as sink:
            yield sink.write
