"""Loads a server of OpenAI's API and measures it; the figures have vLLM's names.

llmrs bench serve --url http://127.0.0.1:8000
"""

from __future__ import annotations

import asyncio
import json
import math
import os

import click

from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.errors import ExitCode, LlmrsError

USUAL_VOCAB = 32_000
"""Ids that a model is taken to have if its server does not say."""


def _limits(typed: str) -> dict[str, float]:
    try:
        limits = {name: float(value) for name, _, value in (part.partition(":") for part in typed.split(","))}
    except ValueError:
        limits = {"": 0.0}
    if not set(limits) <= {"ttft", "tpot", "e2el"}:
        raise click.BadParameter(f"{typed!r} is not a list of limits in ms, such as ttft:200,tpot:50.")
    return limits


@click.command("serve")
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, metavar="URL", help="The server.")
@click.option("--model", metavar="NAME", help="Default: the first that it serves.")
@click.option(
    "--num-prompts", default=200, show_default=True, type=click.IntRange(1), metavar="N", help="Requests."
)
@click.option(
    "--random-input-len",
    default=1024,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Tokens of a prompt.",
)
@click.option(
    "--random-output-len",
    default=128,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Tokens of an answer.",
)
@click.option(
    "--random-range-ratio",
    default=0.0,
    type=click.FloatRange(0, 1, max_open=True),
    metavar="X",
    help="Lengths vary by this share.",
)
@click.option(
    "--request-rate",
    default=math.inf,
    type=click.FloatRange(0, min_open=True),
    metavar="X",
    help="Arrivals a second; default: all at once.",
)
@click.option(
    "--burstiness",
    default=1.0,
    type=click.FloatRange(0, min_open=True),
    metavar="X",
    help="1 is Poisson; below, arrivals bunch.",
)
@click.option("--max-concurrency", type=click.IntRange(1), metavar="N", help="Requests under way at most.")
@click.option(
    "--goodput",
    type=_limits,
    metavar="LIMITS",
    help="What a good request stays under, in ms: ttft:200,tpot:50.",
)
@click.option("--seed", default=0, show_default=True, type=int, metavar="N", help="Of prompts and arrivals.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with the keys of vLLM's.")
def command(
    url: str,
    model: str | None,
    num_prompts: int,
    random_input_len: int,
    random_output_len: int,
    random_range_ratio: float,
    request_rate: float,
    burstiness: float,
    max_concurrency: int | None,
    goodput: dict[str, float] | None,
    seed: int,
    as_json: bool,
) -> int:
    """Send random prompts to a running server and measure what comes back.

    The server may be any with OpenAI's completions that takes prompts as token ids. A key comes from the variable
    LLMRS_API_KEY. Another run with the same seed finds its prompts in the server's prefix cache: change it.

    \b
      llmrs bench serve --num-prompts 256 --max-concurrency 64 --random-input-len 256
      llmrs bench serve --url http://127.0.0.1:8001 --request-rate 4 --goodput ttft:500
    """
    from llmrs_cli.server.load import Plan, run
    from llmrs_cli.server.load_client import Target, get

    terminal = Terminal.standard()
    target = Target.of(url, os.environ.get("LLMRS_API_KEY"))
    served = asyncio.run(get(target, "/v1/models"))["data"]
    if not served:
        raise LlmrsError("The server serves no model.")
    plan = Plan(
        model=model or served[0]["id"],
        vocab=served[0].get("vocab_size", USUAL_VOCAB),
        prompts=num_prompts,
        input_tokens=random_input_len,
        output_tokens=random_output_len,
        range_ratio=random_range_ratio,
        rate=request_rate,
        burstiness=burstiness,
        concurrency=max_concurrency,
        seed=seed,
        goodput=goodput,
    )
    with terminal.working(f"Asking {plan.model} {num_prompts} times") as bar:
        figures = asyncio.run(run(target, plan, bar.update))
    for line in [json.dumps(figures)] if as_json else _lines(figures):
        terminal.data(line)
    return ExitCode.OK if not figures["failed"] else ExitCode.RUNTIME


def _lines(figures: dict[str, float]) -> list[str]:
    """A table for people."""
    lines = [
        f"{figures['completed']} answered, {figures['failed']} failed in {figures['duration']:.2f} s",
        f"{figures['request_throughput']:.2f} requests/s, {figures['output_throughput']:.1f} output tok/s,"
        f" {figures['total_token_throughput']:.1f} total tok/s",
    ]
    if figures["request_goodput"] is not None:
        lines.append(f"{figures['request_goodput']:.2f} good requests/s")
    lines.append(f"{'ms':6}{'mean':>10}{'median':>10}{'p90':>10}{'p99':>10}")
    for name in ("ttft", "tpot", "itl", "e2el"):
        row = [figures[f"{kind}_{name}_ms"] for kind in ("mean", "median", "p90", "p99")]
        lines.append(f"{name.upper():6}" + "".join(f"{value:10.2f}" for value in row))
    return lines
