"""A 4-bit model into a copy whose weights lie in the kernels' order.

llmrs convert MODEL [-o DIR] [--json]
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from llmrs_cli.cli.models import choose, converted_place
from llmrs_cli.cli.options import ModelOptions, json_option, model_options
from llmrs_cli.cli.place import filling, new_place
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.errors import ExitCode, ModelError

if TYPE_CHECKING:
    from llmrs_cli.cli.models import Chosen
    from llmrs_cli.engine.weights.checkpoint import Checkpoint


@click.command("convert")
@model_options(required=True, runs=False)
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=click.Path(),
    help="Folder to write; must be new. Default: our cache, where it is found by the model's name.",
)
@json_option
def command(model: ModelOptions, output: str | None, as_json: bool) -> int:
    """Write a copy of a 4-bit model in the order of the kernels.

    For slow disks and for shipping: the original loads just as well, only later. The copy takes as much room
    again and runs on every device. It is verified while it is written, and whenever it is read where it was
    moved or changed since. Without -o it lies in our cache, and every command that names the model uses it;
    'llmrs rm --converted' removes it, and the same command once more verifies it anew. Prints the folder.

    \b
      llmrs convert qwen2.5-7b-awq
      llmrs convert ./my-model-awq -o my-model-converted
    """
    terminal = Terminal.standard()
    target = None if output is None else new_place(output)
    chosen = choose(model, terminal, runs=False)
    began = time.perf_counter()
    checkpoint = _open(chosen.path)
    kept = None
    if target is None:
        target, kept = converted_place(chosen.path, make=True), _is_good
        assert target is not None
    new = _write(checkpoint, _source(chosen, shipped=kept is None), target, kept, terminal)
    if not new:
        terminal.notice(f"{chosen.name.text} was converted before.")
    report = {
        "model": chosen.name.text,
        "source": str(chosen.path),
        "output": str(target),
        "new": new,
        "bytes": sum(file.stat().st_size for file in target.rglob("*") if file.is_file()),
        "seconds": time.perf_counter() - began,
    }
    terminal.data(json.dumps(report) if as_json else str(target))
    return ExitCode.OK


def _source(chosen: Chosen, *, shipped: bool) -> str:
    """What the copy says it was made of: the name as typed, but in our cache a path that means the same anywhere."""
    path = chosen.name.path
    return chosen.name.text if shipped or path is None else str(path.absolute())


def _open(path: Path) -> Checkpoint:
    from llmrs_cli.engine.weights.checkpoint import open_checkpoint
    from llmrs_cli.engine.weights.convert import check_convertible

    checkpoint = open_checkpoint(path)
    check_convertible(checkpoint)
    return checkpoint


def _write(
    checkpoint: Checkpoint, name: str, target: Path, kept: Callable[[Path], bool] | None, terminal: Terminal
) -> bool:
    """Whether the copy had to be written."""
    from llmrs_cli.engine.weights.convert import convert

    total = sum(parameter.nbytes for parameter in checkpoint.parameters.values())
    with filling(target, total, terminal, kept) as folder, terminal.working(f"Converting {name}") as status:
        if folder is None:
            return False
        done = 0
        for size in convert(checkpoint, name, folder):
            done += size
            status.update(done, total)
    return True


def _is_good(folder: Path) -> bool:
    """Whether a converted checkpoint is whole: every weight is read and checked."""
    from llmrs_cli.engine.weights.convert import check_converted

    try:
        check_converted(folder)
    except ModelError:
        return False
    return True
