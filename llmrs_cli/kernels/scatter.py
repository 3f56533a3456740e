"""Launcher of scatter.cu: words from a pinned host buffer to their places on the GPU."""

from __future__ import annotations

from llmrs_cli.kernels.launch import Device, Kernel, Scalar, Shape
from llmrs_cli.kernels.loader import Unit

UNIT = Unit("scatter")
RUN_WORDS = 4
"""A run in the buffer: address (two words), offset, count."""
BLOCKS_PER_RUN = 4
_KERNEL = Kernel(UNIT, "scatter", (Scalar("runs", "u64"), Scalar("words", "u64")))


def scatter(device: Device, runs: int, words: int, count: int) -> None:
    """Copy `count` runs; `runs` and `words` are addresses in pinned host memory."""
    _KERNEL.launch(device, Shape((count, BLOCKS_PER_RUN, 1), (256, 1, 1)), runs, words)
