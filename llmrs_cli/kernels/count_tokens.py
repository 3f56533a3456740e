"""Launcher of count_tokens.cu: penalty counts of rows that start."""

from __future__ import annotations

from typing import Any

from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Scalar, Shape
from llmrs_cli.kernels.loader import Unit

UNIT = Unit("count_tokens")
_PARAMS = (
    Buffer("starts", "i32", ("N", 3)),
    Buffer("pool", "i32", ("R", "P")),
    Buffer("counts", "u16", ("R", "W")),
    Scalar("pool_width", "i32"),
    Scalar("words", "i32"),
)


_KERNEL = Kernel(UNIT, "count_tokens", _PARAMS)


def count_tokens(device: Device, starts: Any, pool: Any, counts: Any) -> None:
    """Count anew for each of `starts` (N, 3): row, tokens known, tokens of the prompt. W is even."""
    _KERNEL.launch(
        device,
        Shape((starts.shape[0], 1, 1), (1024, 1, 1)),
        starts, pool, counts, pool.shape[1], counts.shape[1] // 2,
    )  # fmt: skip
