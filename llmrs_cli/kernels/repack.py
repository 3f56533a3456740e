"""Launchers of repack.cu: canonical 4-bit codes on the GPU → tiles, and a check of every value."""

from __future__ import annotations

from functools import cache
from typing import Any

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Scalar, Shape, ceil_div
from llmrs_cli.kernels.loader import Unit
from llmrs_cli.kernels.marlin_layout import UNIT_TILES, tile_group
from llmrs_cli.kernels.packed4 import Packed4Matrix, units_buffer

WARPS = 8
_CANONICAL = (
    Buffer("codes", "u32", ("N", "words")),
    Buffer("scales", "u16", ("N", "groups")),
    Buffer("zeros", "u16", ("N", "groups")),
)


def unit(bf16: bool) -> Unit:
    """The translation unit for one 16-bit type."""
    return Unit("repack", (("BF16", int(bf16)),))


@cache
def _repack(bf16: bool, unit_words: int) -> Kernel:
    sizes = ("n", "k", "across", "group_count", "group", "own", "tiles")
    return Kernel(
        unit(bf16),
        "repack",
        (*_CANONICAL, units_buffer(unit_words), *(Scalar(name, "i32") for name in sizes)),
    )


@cache
def _compare(bf16: bool, k: int) -> Kernel:
    outputs = Buffer("values", "u16", ("N", k)), Buffer("wrong", "i32", (1,))
    return Kernel(
        unit(bf16),
        "compare",
        (*_CANONICAL, *outputs, *(Scalar(name, "i32") for name in ("rows", "k", "group_count", "group"))),
    )


def repack(
    device: Device, bf16: bool, codes: Any, scales: Any, zeros: Any, group: int, out: Packed4Matrix
) -> None:
    """Fill `out` with the tiles of codes (N, K / 8) uint32, scales (N, ceil(K/G)) float16 bits and zeros uint16.

    `group` is the canonical G; K is a multiple of 8.
    """
    layout = out.layout
    n, k = layout.rows, layout.columns
    if k % 8 or codes.shape != (n, k // 8) or tile_group(group, k) != layout.group:
        raise EngineFault(f"No tiles of a 4-bit ({n}, {k}) with groups of {group}.")
    tiles = layout.unit_rows * layout.unit_columns * UNIT_TILES
    _repack(bf16, layout.unit_bytes // 4).launch(
        device,
        Shape((ceil_div(tiles, WARPS), 1, 1), (WARPS * 32, 1, 1)),
        codes, scales, zeros, out.units, n, k, layout.unit_columns, scales.shape[1], group, layout.group, tiles,
    )  # fmt: skip


def compare(
    device: Device, bf16: bool, codes: Any, scales: Any, zeros: Any, group: int, values: Any, wrong: Any
) -> None:
    """Add to `wrong` (1,) how many of `values` (N, K) are not the canonical weights rounded to 16 bit."""
    rows, k = values.shape
    if k % 8 or codes.shape[1] != k // 8:
        raise EngineFault(f"No canonical codes of ({rows}, {k}).")
    _compare(bf16, k).launch(
        device,
        Shape((ceil_div(rows * k // 8, 256), 1, 1), (256, 1, 1)),
        codes, scales, zeros, values, wrong, rows, k, scales.shape[1], group,
    )  # fmt: skip
