"""Launcher of dequantise.cu: a part of a 4-bit matrix as 16-bit values."""

from __future__ import annotations

from functools import cache
from typing import Any

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Scalar, Shape, ceil_div
from llmrs_cli.kernels.loader import Unit
from llmrs_cli.kernels.marlin_layout import TILE_COLUMNS, UNIT_ROWS, UNIT_TILES
from llmrs_cli.kernels.packed4 import Packed4Matrix, units_buffer

WARPS = 8


def unit(bf16: bool, group: int) -> Unit:
    """The translation unit for one 16-bit type and group size."""
    return Unit("dequantise", (("BF16", int(bf16)), ("GROUP", group)))


@cache
def _kernel(bf16: bool, group: int, unit_words: int) -> Kernel:
    sizes = ("first", "past", "left", "width", "across", "rows", "columns")
    return Kernel(
        unit(bf16, group),
        "dequantise",
        (
            units_buffer(unit_words),
            Buffer("out", "u16", ("rows", "columns")),
            *(Scalar(name, "i32") for name in sizes),
        ),
    )


def dequantise(
    device: Device, bf16: bool, weight: Packed4Matrix, out: Any, first: int = 0, left: int = 0
) -> None:
    """out (rows, columns) = W[first : first + rows, left : left + columns], rounded to 16 bit.

    `first` is a multiple of 64, `left` of 128, the number of columns of 8; the part lies within W.
    """
    (rows, columns), layout = out.shape, weight.layout
    inside = first + rows <= layout.rows and left + columns <= layout.columns
    if first % UNIT_ROWS or left % TILE_COLUMNS or columns % 8 or not inside:
        raise EngineFault(f"No rows {first} + {rows}, columns {left} + {columns} of a 4-bit {weight.shape}.")
    down, width = ceil_div(rows, UNIT_ROWS), ceil_div(columns, TILE_COLUMNS)
    top, start = first // UNIT_ROWS, left // TILE_COLUMNS
    _kernel(bf16, layout.group, layout.unit_bytes // 4).launch(
        device,
        Shape((ceil_div(down * width * UNIT_TILES, WARPS), 1, 1), (WARPS * 32, 1, 1)),
        weight.units, out, top, top + down, start, width, layout.unit_columns, rows, columns,
    )  # fmt: skip
