"""A 16-bit model into 4-bit AWQ files.

llmrs quantize MODEL -o DIR [--rtn] [--group-size N] [--calibration FILE] [--eval FILE] [--json]
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from llmrs_cli.cli import eval as evaluation
from llmrs_cli.cli.models import Chosen, choose
from llmrs_cli.cli.options import ModelOptions, json_option, model_options
from llmrs_cli.cli.place import filling, new_place
from llmrs_cli.cli.report import tell
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.errors import ExitCode, ModelError, escaped

if TYPE_CHECKING:
    from llmrs_cli.engine.quantise.model import Recipe
    from llmrs_cli.engine.weights.checkpoint import Checkpoint

WINDOW = 512
"""Tokens of a calibration text that are read at once."""
TOKENS = 8192
"""Of the calibration text at most."""
BUILT_IN = "built-in"


@dataclass(frozen=True, slots=True)
class Report:
    """What `--json` prints."""

    model: str
    output: str
    method: str
    """awq or rtn"""
    group_size: int
    calibration: str
    """File, or built-in."""
    calibration_tokens: int
    bytes_before: int
    """Of the weights."""
    bytes_after: int
    layer_errors: list[float]
    """‖Δ‖/‖·‖ of what each layer adds, given its true input."""
    seconds: float
    before: evaluation.Report | None
    """Perplexity of the source; null without --eval."""
    after: evaluation.Report | None


@click.command("quantize")
@model_options(required=True)
@click.option(
    "-o", "--output", metavar="DIR", required=True, type=click.Path(), help="Folder to write; must be new."
)
@click.option(
    "--group-size",
    type=click.Choice(["32", "64", "128"]),
    help="Inputs that share a scale. Default: the largest that divides the inputs of every layer.",
)
@click.option("--rtn", is_flag=True, help="Plain rounding to nearest, without activation-aware scales.")
@click.option(
    "--calibration",
    metavar="FILE",
    type=click.Path(),
    help=f"Text that is like what the model will read; {TOKENS:,} tokens are used. Default: built in.",
)
@click.option(
    "--eval",
    "text_file",
    metavar="FILE",
    type=click.Path(),
    help="Text to measure perplexity on, before and after.",
)
@json_option
def command(
    model: ModelOptions,
    output: str,
    group_size: str | None,
    rtn: bool,
    calibration: str | None,
    text_file: str | None,
    as_json: bool,
) -> int:
    """Quantise a 16-bit model to 4 bits, in AWQ's format.

    Weights that meet large activations are scaled up before rounding (AWQ), judged by a calibration text.
    The result is a folder of safetensors that vLLM and transformers load as well. One layer at a time is
    held in memory. For every layer the relative error of what it adds is printed, and with --eval the
    perplexity of both models.

    \b
      llmrs quantize Qwen/Qwen2.5-1.5B-Instruct -o qwen2.5-1.5b-awq
      llmrs quantize ./my-model -o my-model-4bit --calibration chats.txt --eval book.txt
    """
    terminal = Terminal.standard()
    target = new_place(output)
    text = None if text_file is None else evaluation.read_text(text_file, terminal)
    own = None if calibration is None else evaluation.read_text(calibration, terminal)
    chosen = choose(model, terminal, runs=text is not None)
    work = _plan(chosen, target, None if group_size is None else int(group_size), rtn)

    def measured(path: Path, name: str) -> evaluation.Report | None:
        if text is None or text_file is None:
            return None
        from llmrs_cli.engine.weights.checkpoint import open_checkpoint

        return evaluation.measure(
            open_checkpoint(path), name, chosen.device, text_file, text, (None, None), terminal
        )

    before = measured(chosen.path, chosen.name.text)
    report = _quantise(work, calibration or BUILT_IN, own, terminal, echo=not as_json)
    report = replace(report, before=before, after=measured(target, str(target)))
    tell(report, describe, terminal, as_json=as_json)
    return ExitCode.OK


@dataclass(frozen=True, slots=True)
class _Work:
    """What is to be done."""

    name: str
    checkpoint: Checkpoint
    recipe: Recipe
    target: Path

    @property
    def bytes_before(self) -> int:
        """Of the weights in the model's files."""
        return sum(parameter.nbytes for parameter in self.checkpoint.parameters.values())

    @property
    def bytes_after(self) -> int:
        """Of those that are to be written."""
        from llmrs_cli.engine.quantise.files import entries

        return sum(entry.nbytes for entry in entries(self.checkpoint, self.recipe.group).values())


def _plan(chosen: Chosen, target: Path, group: int | None, plain: bool) -> _Work:
    """Raises what makes the model or the group size impossible, before anything is computed."""
    from llmrs_cli.engine.quantise.model import SOURCE_HINT, Recipe, check_source, choose_group
    from llmrs_cli.engine.weights.checkpoint import open_checkpoint
    from llmrs_cli.hub.files import size_text

    checkpoint = open_checkpoint(chosen.path)
    check_source(checkpoint)
    # Files travel: of a path only its last part is said.
    source = chosen.name.text if chosen.name.path is None else chosen.name.path.absolute().name
    work = _Work(chosen.name.text, checkpoint, Recipe(choose_group(checkpoint, group), plain, source), target)
    if work.bytes_after >= work.bytes_before:
        after, before = size_text(work.bytes_after), size_text(work.bytes_before)
        raise ModelError(
            f"In 4 bits {escaped(work.name)} would take {after}, and it takes {before} as it is.",
            hint=SOURCE_HINT,
        )
    return work


def _quantise(work: _Work, source: str, text: str | None, terminal: Terminal, *, echo: bool) -> Report:
    """Write the model; `text` comes from `source`, None: built in. With `echo`, errors are printed as they come."""
    from llmrs_cli.engine.quantise.model import quantise_model

    checkpoint, recipe = work.checkpoint, work.recipe
    windows = calibration_windows(checkpoint, text)
    if recipe.plain:  # read only to say how large the errors are
        windows = windows[:1]
    errors: list[float] = []
    began = time.perf_counter()
    with (
        filling(work.target, work.bytes_after, terminal) as folder,
        terminal.working(f"Quantising {work.name}") as status,
    ):
        assert folder is not None, "what is there is never kept"
        for error in quantise_model(checkpoint, folder, windows, recipe):
            errors.append(error)
            status.update(len(errors), checkpoint.spec.layers)
            if echo:
                terminal.data(f"layer {len(errors) - 1}: relative error {error:.4f}")
    return Report(
        model=work.name,
        output=str(work.target),
        method="rtn" if recipe.plain else "awq",
        group_size=recipe.group,
        calibration=source,
        calibration_tokens=sum(len(window) for window in windows),
        bytes_before=work.bytes_before,
        bytes_after=work.bytes_after,
        layer_errors=errors,
        seconds=time.perf_counter() - began,
        before=None,
        after=None,
    )


def calibration_windows(checkpoint: Checkpoint, text: str | None) -> list[tuple[int, ...]]:
    """Token ids of the calibration text, cut into windows. Raises ModelError for a model without a tokenizer."""
    from llmrs_cli.engine.quantise.texts import TEXT

    tokenizer = evaluation.tokenizer_of(checkpoint)
    ids = tokenizer.encode(TEXT if text is None else text, bos=False)[:TOKENS]
    length = min(WINDOW, checkpoint.spec.max_context) - len(tokenizer.prefix)
    return [(*tokenizer.prefix, *ids[at : at + length]) for at in range(0, len(ids), length)]


def describe(report: Report) -> Iterator[str]:
    """The result for people."""
    from llmrs_cli.hub.files import size_text

    yield (
        f"{report.output}: 4-bit AWQ, group {report.group_size}"
        f"{', plain rounding' if report.method == 'rtn' else ''}; "
        f"{size_text(report.bytes_after)} of {size_text(report.bytes_before)}"
    )
    if report.before is not None and report.after is not None:
        old, new = report.before, report.after
        yield (
            f"perplexity {old.perplexity:.4f} before, {new.perplexity:.4f} after "
            f"({new.perplexity / old.perplexity - 1:+.2%}); {new.scored:,} tokens of {new.file}, "
            f"windows of {new.window}, stride {new.stride}"
        )
