"""Measures how fast a model runs here, beside what the memory allows.

llmrs bench MODEL [--batch 1,8,32] [--scenario NAME]
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmrs_cli import __version__
from llmrs_cli.cli.bench_names import NAMES
from llmrs_cli.cli.models import asked_memory, choose, choose_device, free_bytes, model_named
from llmrs_cli.cli.options import ModelOptions, model_options
from llmrs_cli.cli.parameters import FiniteRange
from llmrs_cli.cli.report import tell
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.config import load_settings
from llmrs_cli.errors import ExitCode, ModelError, quoted

if TYPE_CHECKING:
    from llmrs_cli.engine.model.spec import ModelSpec
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


OWN = {"serve": "llmrs_cli.cli.bench_serve", "kernels": "llmrs_cli.cli.bench_kernels"}
"""Words that stand in the place of MODEL and are commands of their own."""


class Bench(click.Command):
    """`bench MODEL`, or one of `OWN`."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and args[0] in OWN:
            other: click.Command = import_module(OWN[args[0]]).command
            return other.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(
    "bench",
    cls=Bench,
    epilog="'llmrs bench serve --help' loads and measures a running server, 'llmrs bench kernels --help' single kernels.",
)
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
    "-s",
    "--scenario",
    "scenarios",
    multiple=True,
    type=click.Choice(NAMES),
    metavar="NAME",
    help=f"Instead of --batch, loads of fixed sizes: {', '.join(NAMES)}; repeatable.",
)
@click.option(
    "--scale",
    type=FiniteRange(0.0, 1.0, min_open=True),
    default=1.0,
    metavar="X",
    help="A share of a scenario's requests and lengths.",
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
    scenarios: tuple[str, ...],
    scale: float,
    random_weights: bool,
    as_json: bool,
) -> int:
    """Measure prefill and decode speed.

    Prompts are random token ids. Each batch size is run once to warm up and then --repeats times. The share
    compares the bytes of the weights, read once a decode step, with the bandwidth of a plain loop over
    memory measured in the same run.

    Scenarios go through the engine as chat and batch use it: single (one request of 256 + 128 tokens, and first
    tokens), throughput (256 requests, 64 of them running, then all), prefill (16 prompts of 2,048), mixed (lengths
    and arrivals as in use), budget (tokens a step), sampled against greedy, long (a context of 32k), prefix (a shared system prompt),
    startup (a process until its first token), deterministic (what fixed bits cost), profile (where a step's time
    goes); all of them but the last three: all.

    \b
      llmrs bench smollm2-135m
      llmrs bench qwen2.5-7b-awq --random-weights --batch 1,64 --json
      llmrs bench qwen2.5-7b --random-weights -s single -s throughput --json
    """
    terminal = Terminal.standard()
    device, checkpoint, name = _checkpoint(model, random_weights, terminal)
    if scenarios:
        from llmrs_cli.cli.bench_scenarios import Choice, run

        memory = asked_memory(model, free_bytes(device))
        choice = Choice(name, device, scenarios, scale, repeats, random_weights, memory, model.deterministic)
        run(checkpoint, choice, terminal, as_json)
        return ExitCode.OK
    memory = asked_memory(model, free_bytes(device))
    load = _Plan(batches, prompt_tokens, tokens, repeats, memory, model.deterministic)
    report = _measure(checkpoint, name, device, load, random_weights, terminal)
    tell(report, describe, terminal, as_json=as_json)
    return ExitCode.OK


@dataclass(frozen=True, slots=True)
class _Plan:
    batches: tuple[int, ...]
    prompt: int
    answer: int
    repeats: int
    memory: int | None
    deterministic: bool


def _checkpoint(model: ModelOptions, random_weights: bool, terminal: Terminal) -> tuple[str, Checkpoint, str]:
    """Device, model and its name; with random weights nothing is fetched."""
    from llmrs_cli.engine.weights.small_head import open_model, with_small_head

    if not random_weights:
        chosen = choose(model, terminal)
        return chosen.device, open_model(chosen.path, small_head=chosen.small_head), chosen.name.text
    assert model.model is not None, "the model is required"
    settings = load_settings({"device": model.device})
    checkpoint = random_model(model.model)
    if model.quantize_head:
        checkpoint = with_small_head(checkpoint)
    return choose_device(settings.device.value, terminal), checkpoint, model.model


def random_model(text: str, layers: Callable[[ModelSpec], int] | None = None) -> Checkpoint:
    """Random weights for an alias or for a folder with config.json; `layers` says of how many layers instead."""
    import tempfile

    from llmrs_cli.engine.weights.checkpoint import read_config
    from llmrs_cli.engine.weights.random import random_checkpoint

    name = model_named(text)
    if name.alias is not None:
        config = dict(name.alias.config)
    elif name.path is not None and (name.path / "config.json").is_file():
        config = read_config(name.path)[0]
    else:
        raise ModelError(
            f"{quoted(text)} is neither an alias nor a folder with config.json.",
            hint="Random weights need one of the two.",
        )
    with tempfile.TemporaryDirectory(prefix="llmrs-") as folder:

        def made() -> Checkpoint:
            (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
            return random_checkpoint(Path(folder))

        checkpoint = made()
        if layers is None:
            return checkpoint
        config["num_hidden_layers"] = layers(checkpoint.spec)
        return made()


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
            open_backend(device, deterministic=plan.deterministic),
            context=plan.prompt + plan.answer,
            rows=max(plan.batches),
            memory=plan.memory,
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
