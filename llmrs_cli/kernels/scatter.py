"""Launcher of scatter.cu: words from a pinned host buffer to their places on the GPU."""

from __future__ import annotations

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.launch import Device, Kernel, Scalar, Shape, ceil_div
from llmrs_cli.kernels.loader import Unit

UNIT = Unit("scatter")
RUN_WORDS = 4
"""A run in the buffer: address (two words), offset, count."""
MOST_RUNS = 2048
"""Of one launch, whose blocks each keep all of them in shared memory."""
THREADS = 256
_KERNEL = Kernel(
    UNIT,
    "scatter",
    (
        Scalar("runs", "u64"),
        Scalar("words", "u64"),
        *(Scalar(name, "i32") for name in ("count", "first", "past")),
    ),
)


def scatter(device: Device, runs: int, words: int, count: int, first: int, past: int) -> None:
    """Copy `count` runs that hold words `first` to `past`, one after the other.

    `runs` and `words` are addresses in pinned host memory. Raises EngineFault for more than MOST_RUNS.
    """
    if count > MOST_RUNS:
        raise EngineFault(f"scatter copies {MOST_RUNS} runs at a time, not {count}.")
    shape = Shape((ceil_div(past - first, THREADS), 1, 1), (THREADS, 1, 1), 4 * RUN_WORDS * count)
    _KERNEL.launch(device, shape, runs, words, count, first, past)
