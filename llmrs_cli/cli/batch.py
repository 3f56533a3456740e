"""Answers every row of a file.

llmrs batch INPUT -o OUTPUT [-m MODEL]
"""

from __future__ import annotations

from typing import Any

import click

from llmrs_cli.cli.batch_options import BatchOptions, batch_options
from llmrs_cli.cli.json_options import json_form, schema_option, template_option
from llmrs_cli.cli.options import ModelOptions, Sampling, model_options, quiet_option, sampling_options
from llmrs_cli.cli.parameters import text
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.engine.types import MAX_LOGPROBS
from llmrs_cli.errors import UsageError


@click.command("batch")
@batch_options
@model_options(positional=False)
@click.option("-s", "--system", type=text, metavar="TEXT", help="System prompt of rows without one.")
@click.option("--n", "n", type=click.IntRange(1, 128), metavar="N", help="Answers to each row.")
@click.option("--system-file", metavar="FILE", help="The same from a file.")
@schema_option
@click.option("--json-mode", is_flag=True, help="Hold answers to a JSON object.")
@template_option
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
    job: BatchOptions,
    model: ModelOptions,
    system: str | None,
    n: int | None,
    system_file: str | None,
    schema: str | None,
    json_mode: bool,
    template_kwargs: dict[str, Any],
    return_token_ids: bool,
    logprobs: int | None,
    sampling: Sampling,
    quiet: bool,
) -> int:
    """Answer every row of a file.

    One row in, one line out, in input order. Rows are JSON lines with a "prompt", "messages" or
    "prompt_token_ids", requests of OpenAI's batch API, lines of text, or records of a CSV or TSV table;
    gzip and zstd are understood. A row may bring its own options, and they win over the flags here. A row
    that cannot be answered gets a line with an error, and the others go on; the status is then 3. See
    "llmrs help formats".

    Each finished row is on disk at once. After a kill, a full disk or Ctrl-C, the same command with --resume
    goes on: nothing is lost and nothing is computed twice.

    \b
      llmrs batch prompts.jsonl -o answers.jsonl
      llmrs batch requests.jsonl.gz -o results.jsonl -m qwen2.5-3b -t 0 --resume
      llmrs batch reviews.csv -o labels.jsonl --prompt-template 'Positive or negative? {review}'
      llmrs batch reviews.csv -o labels.jsonl --schema '{"enum": ["good", "bad"]}' --prompt-template '{review}'
      llmrs batch prompts.jsonl --dry-run
      jq -c '{prompt: .question, id}' faq.json | llmrs batch - | jq -r .text
    """
    from llmrs_cli.cli.batch_job import Asked, run
    from llmrs_cli.cli.batch_plan import dry_run

    options: dict[str, Any] = {**sampling.given(), "logprobs": logprobs}
    if n is not None:
        options["n"] = n
    form = json_form(schema, json_mode=json_mode)
    asked = Asked(job, model, options, _system(system, system_file), return_token_ids, form, template_kwargs)
    return (dry_run if job.dry_run else run)(asked, Terminal.standard(quiet=quiet))


def _system(typed: str | None, file: str | None) -> str | None:
    from llmrs_cli.chat.source import read_file

    if typed is not None and file is not None:
        raise UsageError("-s and --system-file are both given.", hint="Give one of them.")
    return typed if file is None else read_file(file)
