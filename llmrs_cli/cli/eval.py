"""The perplexity of a model on a text, on any backend.

llmrs eval FILE [MODEL] [--window N] [--stride N] [--json]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from llmrs_cli.cli.models import choose
from llmrs_cli.cli.options import ModelOptions, json_option, model_options
from llmrs_cli.cli.report import tell
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.errors import ExitCode, ModelError, UsageError, quoted

if TYPE_CHECKING:
    from llmrs_cli.engine.perplexity import Score, Windows
    from llmrs_cli.engine.weights.checkpoint import Checkpoint
    from llmrs_cli.text.tokenizer import Tokenizer

WINDOW = 512
"""Tokens of a window where nobody says otherwise."""


@dataclass(frozen=True, slots=True)
class Report:
    """What `--json` prints."""

    model: str
    device: str
    file: str
    bytes: int
    tokens: int
    """Of the text."""
    scored: int
    window: int
    stride: int
    windows: int
    nll: float
    """-log p in nats, summed over the scored tokens."""
    perplexity: float
    bits_per_byte: float
    seconds: float


@click.command("eval")
@click.argument("file", metavar="FILE", type=click.Path())
@model_options()
@click.option(
    "--window",
    type=click.IntRange(2),
    metavar="N",
    help=f"Tokens that are read at once. Default: {WINDOW}, or the model's context if that is shorter.",
)
@click.option(
    "--stride",
    type=click.IntRange(1),
    metavar="N",
    help="Tokens from one window to the next. Default: half a window.",
)
@json_option
def command(file: str, model: ModelOptions, window: int | None, stride: int | None, as_json: bool) -> int:
    """Measure how well a model foretells a text.

    The text is read in windows that overlap; each token is scored once, with at least WINDOW - STRIDE
    tokens before it. Compare figures only between equal windows and strides. FILE is UTF-8; - is stdin.

    \b
      llmrs eval book.txt smollm2-135m
      llmrs eval book.txt ./my-model --window 2048 --stride 1024 --json
    """
    from llmrs_cli.engine.weights.small_head import open_model

    terminal = Terminal.standard()
    text = read_text(file, terminal)
    chosen = choose(model, terminal)
    report = measure(
        open_model(chosen.path, small_head=chosen.small_head),
        chosen.name.text,
        chosen.device,
        file,
        text,
        (window, stride),
        terminal,
    )
    tell(report, describe, terminal, as_json=as_json)
    return ExitCode.OK


def read_text(file: str, terminal: Terminal) -> str:
    """The text of a file or of stdin. Raises UsageError if there is none, ModelError if it cannot be read."""
    from llmrs_cli.chat import source

    def waiting() -> None:
        terminal.notice("Reading stdin; end it with Ctrl-D.")

    if file != "-" and Path(file).is_dir():
        raise UsageError(f"{quoted(file)} is a folder.", hint="Name a text file.")
    text = source.read_stdin(sys.stdin, waiting) if file == "-" else source.read_file(file)
    if not text.strip():
        raise UsageError(f"{quoted(file)} holds no text.")
    return text


def measure(
    checkpoint: Checkpoint,
    name: str,
    device: str,
    file: str,
    text: str,
    cut: tuple[int | None, int | None],
    terminal: Terminal,
) -> Report:
    """Load the model and score `text`; `cut` is window and stride as asked for."""
    from llmrs_cli.engine.backends.registry import open_backend
    from llmrs_cli.engine.forced import load
    from llmrs_cli.engine.perplexity import score_text

    tokenizer = tokenizer_of(checkpoint)
    windows = cut_windows(*cut, checkpoint.spec.max_context, tokenizer.prefix)
    ids = tokenizer.encode(text, bos=False)
    if len(ids) + len(windows.prefix) < 2:
        raise UsageError(f"{quoted(file)} is a single token, which nothing foretells.")
    with terminal.working(f"Loading {name}") as status, closing(open_backend(device)) as backend:
        loaded = load(checkpoint, backend, status.update)
        status.say(f"Reading {len(ids):,} tokens")
        began = time.perf_counter()
        score = score_text(loaded, ids, windows, status.update)
        seconds = time.perf_counter() - began
    return _report(name, device, file, len(text.encode()), len(ids), windows, score, seconds)


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    """Raises ModelError for a model without one."""
    from llmrs_cli.text.tokenizer import Tokenizer

    if checkpoint.tokenizer_json is None:
        raise ModelError("This model has no tokenizer, so it cannot read a text.")
    return Tokenizer(checkpoint.tokenizer_json, checkpoint.tokenizer_config)


def cut_windows(window: int | None, stride: int | None, context: int, prefix: tuple[int, ...]) -> Windows:
    """Window and stride as asked for or by default. Raises UsageError if they do not fit `context` or each other."""
    from llmrs_cli.engine.perplexity import Windows

    length = min(WINDOW, context) if window is None else window
    if length > context:
        raise UsageError(f"--window {length} is more than the model's context of {context} tokens.")
    most = length - max(1, len(prefix))
    step = max(1, min(length // 2, most)) if stride is None else stride
    if step > most:
        raise UsageError(f"--stride {step} leaves no token before a window of {length}; at most {most} does.")
    return Windows(length, step, prefix)


def _report(
    name: str, device: str, file: str, size: int, count: int, windows: Windows, score: Score, seconds: float
) -> Report:
    return Report(
        model=name,
        device=device,
        file=file,
        bytes=size,
        tokens=count,
        scored=score.tokens,
        window=windows.length,
        stride=windows.stride,
        windows=score.windows,
        nll=score.nll,
        perplexity=score.perplexity,
        bits_per_byte=score.bits_per_byte(size),
        seconds=seconds,
    )


def describe(report: Report) -> Iterator[str]:
    """The report for people."""
    yield f"perplexity {report.perplexity:.4f}, {report.bits_per_byte:.4f} bits a byte"
    yield (
        f"{report.model} on {report.device}; {report.scored:,} of {report.tokens:,} tokens scored in "
        f"{report.windows:,} windows of {report.window}, stride {report.stride}; "
        f"{report.scored / report.seconds:,.0f} tok/s"
    )
