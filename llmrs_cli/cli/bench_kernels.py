"""Times every op of a model alone, at every size, against what the hardware gives at best.

llmrs bench kernels [MODEL]... [--plot FILE.png]
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmrs_cli import __version__
from llmrs_cli.cli.options import json_option
from llmrs_cli.cli.parameters import device as device_type
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.errors import ExitCode

if TYPE_CHECKING:
    from llmrs_cli.bench.ceilings import Ceilings
    from llmrs_cli.bench.kernels import Timing
    from llmrs_cli.engine.backends.base import Backend

USUAL = ("qwen2.5-7b", "qwen2.5-3b", "qwen2.5-0.5b")


def _sizes(typed: str | None) -> tuple[int, ...]:
    if typed is None:
        return ()
    try:
        sizes = tuple(sorted({int(part) for part in typed.split(",")}))
    except ValueError:
        sizes = ()
    if not sizes or not 1 <= sizes[0] <= sizes[-1] <= 8192:
        raise click.BadParameter(f"{typed!r} is not a list of tokens from 1 to 8192, such as 1,8,64.")
    return sizes


@click.command("kernels")
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@click.option(
    "--device",
    type=device_type,
    default="auto",
    metavar="DEVICE",
    help="auto, cuda, cuda:N, cpu or reference.",
)
@click.option(
    "--sizes", type=_sizes, metavar="LIST", help="Tokens of a step. Default: powers of two up to 2,048."
)
@click.option("--no-attention", is_flag=True, help="Time linear layers alone.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Draw the shares over the sizes, as a PNG.",
)
@json_option
def command(
    models: tuple[str, ...],
    device: str,
    sizes: tuple[int, ...] | None,
    no_attention: bool,
    plot: Path | None,
    as_json: bool,
) -> int:
    """Time single ops with random weights.

    Each MODEL is an alias or a folder with config.json; three sizes of Qwen2.5 where none is named. An op is what
    the decoder calls: a linear layer with the norm before it and what follows fused, or attention. Its share is
    of the time that it would take if its bytes were only read, or its products ran as in a large product,
    both measured in this run.

    \b
      llmrs bench kernels qwen2.5-7b --plot share.png
      llmrs bench kernels qwen2.5-7b-awq --sizes 1,16,64 --json
    """
    terminal = Terminal.standard()
    found = _measure(models or USUAL, device, sizes or (), not no_attention, terminal)
    if plot is not None:
        _draw(plot, found)
        terminal.notice(f"The chart is in {plot}.")
    report = {"machine": platform.platform(), "llmrs": __version__, **found}
    for line in [json.dumps(report, default=_plain)] if as_json else describe(report):
        terminal.data(line)
    return ExitCode.OK


def _plain(timing: Timing) -> dict[str, Any]:
    from llmrs_cli.bench.kernels import figures

    return figures(timing)


def _measure(
    models: Sequence[str], device: str, sizes: tuple[int, ...], attention: bool, terminal: Terminal
) -> dict[str, Any]:
    """Timings by model, and the ceilings they are compared with."""
    from llmrs_cli.bench.ceilings import ceilings
    from llmrs_cli.cli.models import choose_device
    from llmrs_cli.engine.backends.registry import open_backend

    chosen = choose_device(device, terminal)
    timings: dict[str, list[Timing]] = {}
    with (
        terminal.working("Measuring what the machine gives") as status,
        closing(open_backend(chosen)) as backend,
    ):
        top = ceilings(backend)
        # Now: a GPU that has just multiplied at its limit of power is slow for the first ops that are timed.
        read, operations = (1 << 28) / top.read_seconds(1 << 28), top.operations()
        for model in models:
            status.say(f"Loading {model}")
            timings[model] = list(_of_model(model, backend, top, sizes, attention))
        return {
            "device": chosen,
            "read_gb_per_s": read / 1e9,
            "tflop_per_s": operations / 1e12,
            "models": timings,
        }


def _of_model(
    model: str, backend: Backend, top: Ceilings, sizes: tuple[int, ...], attention: bool
) -> Iterator[Timing]:
    from llmrs_cli.bench import kernels
    from llmrs_cli.cli.bench import random_model

    bed = kernels.lay(random_model(model, kernels.layers_for), backend, top)
    yield from kernels.time_linears(bed, sizes or kernels.SIZES)
    if attention:
        yield from kernels.time_attention(bed, kernels.DECODES, kernels.PREFILLS)


def _draw(path: Path, found: dict[str, Any]) -> None:
    from llmrs_cli.bench.kernels import series
    from llmrs_cli.bench.plot import save_chart

    lines = {
        name: points
        for model, timings in found["models"].items()
        for name, points in series(timings, model.removeprefix("qwen2.5-")).items()
    }
    save_chart(path, "share of the ceiling over tokens a step", lines)


def describe(report: dict[str, Any]) -> Iterator[str]:
    """A table for people."""
    yield f"{report['device']}, {report['machine']}"
    yield f"reads {report['read_gb_per_s']:.0f} GB/s, products {report['tflop_per_s']:.2f} TFLOP/s"
    for model, timings in report["models"].items():
        yield model
        yield f"  {'op':<10}{'tokens':>8}{'context':>9}{'us':>11}{'GB/s':>9}{'TFLOP/s':>10}{'share':>8}  bound"
        for t in timings:
            yield (
                f"  {t.op:<10}{t.tokens:>8}{t.context or '':>9}{t.us:>11.2f}{t.gb_per_s:>9.1f}"
                f"{t.tflop_per_s:>10.3f}{t.share:>8.1%}  {t.bound}"
            )
