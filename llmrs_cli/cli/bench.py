"""Measures how fast a model runs here, beside what the memory allows.

llmrs bench MODEL [--batch 1,8,32]
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmrs_cli import __version__
from llmrs_cli.cli.models import choose, choose_device, model_named
from llmrs_cli.cli.options import ModelOptions, model_options
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.config import load_settings
from llmrs_cli.errors import ExitCode, ModelError, quoted

if TYPE_CHECKING:
    from llmrs_cli.engine.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Row:
    """One batch size; tokens a second over all of the batch."""

    batch: int
    prefill: float
    decode: float
    step_ms: float
    """Milliseconds of one decode step."""
    share: float
    """Of the measured bandwidth: bytes of the weights, once a step, a second."""


@dataclass(frozen=True, slots=True)
class Report:
    """A run with everything that it depends on; `--json` prints these fields."""

    model: str
    device: str
    random_weights: bool
    weight_bytes: int
    """Read in every decode step."""
    bandwidth: float
    """Bytes a second of a plain loop, measured in this run."""
    prompt_tokens: int
    answer_tokens: int
    repeats: int
    threads: int
    machine: str
    llmrs: str
    rows: list[Row]


def _batches(typed: str) -> tuple[int, ...]:
    try:
        batches = tuple(sorted({int(part) for part in typed.split(",")}))
    except ValueError:
        batches = ()
    if not batches or not 1 <= batches[0] <= batches[-1] <= 1024:
        raise click.BadParameter(f"{typed!r} is not a list of batch sizes from 1 to 1024, such as 1,8,32.")
    return batches


class Bench(click.Command):
    """`bench MODEL`, or `bench serve`, which is a command of its own."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == ["serve"]:
            from llmrs_cli.cli.bench_serve import command as serve

            return serve.make_context(f"{info_name} serve", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command("bench", cls=Bench, epilog="'llmrs bench serve --help' loads and measures a running server.")
@model_options(required=True)
@click.option(
    "--batch",
    "batches",
    type=_batches,
    metavar="LIST",
    default="1,8,32",
    show_default=True,
    help="Sequences at once.",
)
@click.option(
    "--prompt-tokens",
    type=click.IntRange(1),
    metavar="N",
    default=512,
    show_default=True,
    help="Of each prompt.",
)
@click.option(
    "--tokens", type=click.IntRange(2), metavar="N", default=64, show_default=True, help="Of each answer."
)
@click.option(
    "--repeats",
    type=click.IntRange(1),
    metavar="N",
    default=3,
    show_default=True,
    help="Runs; the median counts.",
)
@click.option(
    "--random-weights", is_flag=True, help="Need only config.json, or an alias: weights are made up."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    model: ModelOptions,
    batches: tuple[int, ...],
    prompt_tokens: int,
    tokens: int,
    repeats: int,
    random_weights: bool,
    as_json: bool,
) -> int:
    """Measure prefill and decode speed.

    Prompts are random token ids. Each batch size is run once to warm up and then --repeats times. The share
    compares the bytes of the weights, read once a decode step, with the bandwidth of a plain loop over
    memory measured in the same run.

    \b
      llmrs bench smollm2-135m
      llmrs bench qwen2.5-7b-awq --random-weights --batch 1,64 --json
    """
    terminal = Terminal.standard()
    device, checkpoint, name = _checkpoint(model, random_weights, terminal)
    load = _Plan(batches, prompt_tokens, tokens, repeats)
    report = _measure(checkpoint, name, device, load, random_weights, terminal)
    if as_json:
        terminal.data(json.dumps(asdict(report)))
    else:
        for line in describe(report):
            terminal.data(line)
    return ExitCode.OK


@dataclass(frozen=True, slots=True)
class _Plan:
    batches: tuple[int, ...]
    prompt: int
    answer: int
    repeats: int


def _checkpoint(model: ModelOptions, random_weights: bool, terminal: Terminal) -> tuple[str, Checkpoint, str]:
    """Device, model and its name; with random weights nothing is fetched."""
    from llmrs_cli.engine.weights.checkpoint import open_checkpoint

    if not random_weights:
        chosen = choose(model, terminal)
        return chosen.device, open_checkpoint(chosen.path), chosen.name.text
    assert model.model is not None, "the model is required"
    settings = load_settings({"device": model.device})
    return choose_device(settings.device.value, terminal), random_model(model.model), model.model


def random_model(text: str) -> Checkpoint:
    """Random weights for an alias or for a folder with config.json."""
    import tempfile

    from llmrs_cli.engine.weights.random import random_checkpoint

    name = model_named(text)
    if name.alias is not None:
        with tempfile.TemporaryDirectory(prefix="llmrs-") as folder:
            (Path(folder) / "config.json").write_text(json.dumps(dict(name.alias.config)), encoding="utf-8")
            return random_checkpoint(Path(folder))
    if name.path is None or not (name.path / "config.json").is_file():
        raise ModelError(
            f"{quoted(text)} is neither an alias nor a folder with config.json.",
            hint="Random weights need one of the two.",
        )
    return random_checkpoint(name.path)


def _measure(
    checkpoint: Checkpoint, name: str, device: str, plan: _Plan, random_weights: bool, terminal: Terminal
) -> Report:
    import numpy as np

    from llmrs_cli.cli.bandwidth import remember_bandwidth, threads
    from llmrs_cli.cli.measure import Load, bandwidth_of, measure
    from llmrs_cli.engine import open_engine
    from llmrs_cli.engine.backends.registry import open_backend

    weights = checkpoint.bytes_a_step
    draw = np.random.default_rng(0)
    rows = []
    with terminal.working("Measuring memory") as status:
        bandwidth = bandwidth_of(device)
        remember_bandwidth(device, bandwidth)
        status.say(f"Loading {name}")
        engine = open_engine(
            checkpoint,
            open_backend(device),
            context=plan.prompt + plan.answer,
            rows=max(plan.batches),
            progress=status.update,
        )
        with closing(engine):
            for batch in plan.batches:
                status.say(f"Measuring a batch of {batch}")
                rates = measure(engine, Load(batch, plan.prompt, plan.answer), plan.repeats, draw)
                steps = rates.decode / batch
                rows.append(Row(batch, rates.prefill, rates.decode, 1e3 / steps, weights * steps / bandwidth))
    return Report(
        name,
        device,
        random_weights,
        weights,
        bandwidth,
        plan.prompt,
        plan.answer,
        plan.repeats,
        threads(),
        platform.platform(),
        __version__,
        rows,
    )


def describe(report: Report) -> Iterator[str]:
    """The report as a table."""
    kind = " (random weights)" if report.random_weights else ""
    yield f"{report.model}{kind} on {report.device}, {report.threads} threads, {report.machine}"
    yield (
        f"prompts of {report.prompt_tokens}, answers of {report.answer_tokens} tokens; median of {report.repeats}; "
        f"weights {report.weight_bytes / 1e9:.3f} GB a step, memory {report.bandwidth / 1e9:.1f} GB/s"
    )
    yield f"{'batch':>6}{'prefill tok/s':>16}{'decode tok/s':>16}{'ms a step':>12}{'share':>9}"
    for row in report.rows:
        yield f"{row.batch:>6}{row.prefill:>16.1f}{row.decode:>16.1f}{row.step_ms:>12.2f}{row.share:>9.1%}"
