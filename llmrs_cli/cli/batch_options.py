"""The options of `llmrs batch` about files and rows, as one frozen value."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from llmrs_cli.cli.options import Decorator, Function
from llmrs_cli.cli.parameters import AliasedOption, some_text
from llmrs_cli.errors import UsageError


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """What is read and written, and what may happen to what is there."""

    source: str | None
    named_source: str | None
    output: str
    errors: str | None
    order: str
    format: str
    output_format: str
    prompt_template: str | None
    id_field: str | None
    resume: bool
    retry_failed: bool
    overwrite: bool
    force: bool
    shard: tuple[int, int]
    limit: int | None
    max_errors: int | None
    dry_run: bool

    @property
    def input_path(self) -> Path | None:
        """None: stdin. UsageError unless exactly one input is named."""
        if self.source is not None and self.named_source is not None:
            raise UsageError("Two inputs are named.", hint="Give INPUT or -i, not both.")
        source = self.source if self.source is not None else self.named_source
        if source is None:
            raise UsageError("No input is named.", hint="Name a file of rows, or - for stdin.")
        return None if source == "-" else Path(source)

    @property
    def output_path(self) -> Path | None:
        """None: stdout."""
        return None if self.output == "-" else Path(self.output)

    @property
    def errors_path(self) -> Path | None:
        return None if self.errors is None else Path(self.errors)

    @property
    def continues(self) -> bool:
        return self.resume or self.retry_failed


def batch_options(function: Function) -> Function:
    """Adds the group; the command takes it as `job: BatchOptions`."""

    @functools.wraps(function)
    def with_group(**values: Any) -> Any:
        names = [field.name for field in fields(BatchOptions)]
        return function(job=BatchOptions(**{name: values.pop(name) for name in names}), **values)

    decorated: Function = with_group
    for parameter in reversed(_PARAMETERS):
        decorated = parameter(decorated)
    return decorated


def shard(typed: str | tuple[int, int]) -> tuple[int, int]:
    """A part of the rows, written i/N."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", typed, re.ASCII) if isinstance(typed, str) else None
    part = (int(match[1]), int(match[2])) if match else typed
    if not isinstance(part, tuple) or not 1 <= part[0] <= part[1]:
        raise click.BadParameter(f"{typed!r} is not a part such as 1/4.")
    return part


_PARAMETERS: list[Decorator] = [
    click.argument("source", metavar="[INPUT]", required=False),
    click.option("-i", "--input", "named_source", metavar="FILE", help="The same as INPUT; - is stdin."),
    click.option("-o", "--output", default="-", metavar="FILE", help="Where output lines go; - is stdout."),
    click.option("--errors", metavar="FILE", help="Where the lines of failed rows go instead."),
    click.option("--resume", is_flag=True, help="Go on where an earlier run of this output ended."),
    click.option("--retry-failed", is_flag=True, help="Resume, and ask rows that failed again."),
    click.option("--overwrite", is_flag=True, help="Start over, whatever the output holds."),
    click.option("--force", is_flag=True, help="Resume though input, model or settings have changed."),
    click.option(
        "--order",
        type=click.Choice(["input", "done"]),
        default="input",
        show_default=True,
        help="Lines in the order of the input, or as rows finish.",
    ),
    click.option(
        "--format",
        type=click.Choice(["auto", "jsonl", "openai", "messages", "prompt", "text", "csv", "tsv"]),
        default="auto",
        show_default=True,
        help="What the input is.",
    ),
    click.option(
        "--output-format",
        type=click.Choice(["auto", "openai", "flat", "text"]),
        default="auto",
        show_default=True,
        help="What output lines are; text: the answers alone.",
    ),
    click.option(
        "--prompt-template",
        type=some_text,
        metavar="TEXT",
        help="Makes the prompt of a row's columns, such as 'Classify: {text}'.",
    ),
    click.option("--id-field", type=some_text, metavar="NAME", help="The column that is a row's id."),
    click.option(
        "--shard",
        type=shard,
        default="1/1",
        metavar="I/N",
        help="Every Nth row from the Ith on, to share the work among machines.",
    ),
    click.option("--limit", type=click.IntRange(0), metavar="N", help="Rows at most."),
    click.option(
        "--max-errors", type=click.IntRange(0), metavar="N", help="End the run when more rows have failed."
    ),
    click.option(
        "-n",
        "--dry-run",
        cls=AliasedOption,
        is_flag=True,
        help="Say what a run would do: rows, tokens, rows that cannot be answered, time.",
    ),
]
