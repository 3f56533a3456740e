"""Launcher of take_rows.cu: the chosen tokens' rows of the residual and of the last attention."""

from __future__ import annotations

from typing import Any

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Param, Scalar, Shape
from llmrs_cli.kernels.loader import Unit

UNIT = Unit("take_rows")
_PARAMS: tuple[Param, ...] = (
    Buffer("tokens", "i32", ("R",)),
    Buffer("residual", "f32", ("T", "C")),
    Buffer("mixed", "u16", ("T", "W")),
    Buffer("residual_out", "f32", ("R", "C")),
    Buffer("mixed_out", "u16", ("R", "W")),
    Scalar("wide", "i32"),
    Scalar("narrow", "i32"),
)
_KERNEL = Kernel(UNIT, "take_rows", _PARAMS)
PARTS = 2
"""Blocks of a row."""


def take_rows(
    device: Device, tokens: Any, residual: Any, mixed: Any, residual_out: Any, mixed_out: Any
) -> None:
    """Rows `tokens` (R,) of residual (T, C) float32 and mixed (T, W) 16-bit, C and W in whole 16 bytes."""
    (count, c), w = residual_out.shape, mixed_out.shape[1]
    if c % 4 or w % 8:
        raise EngineFault(f"take_rows cannot serve rows of {c} and {w} values.")
    _KERNEL.launch(
        device,
        Shape((count, PARTS, 1), (256, 1, 1)),
        tokens, residual, mixed, residual_out, mixed_out, c // 4, w // 8,
    )  # fmt: skip
