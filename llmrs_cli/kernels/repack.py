"""Launchers of repack.cu: 4-bit weights as files hold them → tiles or 16-bit values on the GPU, and a check of each value."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Scalar, Shape, ceil_div
from llmrs_cli.kernels.loader import Unit
from llmrs_cli.kernels.marlin_layout import UNIT_TILES, Layout, tile_group
from llmrs_cli.kernels.packed4 import Packed4Matrix, units_buffer

WARPS = 8
ROWS, WORDS = 32, 8
"""Rows of a part, and words of each, that a block reads."""
Kind = Literal["canonical", "awq", "gptq", "tiles"]
_CANONICAL = (
    Buffer("codes", "u32", ("N", "words")),
    Buffer("scales", "u16", ("N", "groups")),
    Buffer("zeros", "u16", ("N", "groups")),
)
_ALONG_OUTPUTS = Buffer("scales", "u16", ("groups", "n")), Buffer("zeros", "u32", ("groups", "eights"))
_PARTS: dict[Kind, tuple[Buffer, ...]] = {
    "canonical": (
        Buffer("codes", "u32", ("n", "words")),
        Buffer("scales", "u16", ("n", "groups")),
        Buffer("zeros", "u16", ("n", "groups")),
    ),
    "awq": (Buffer("codes", "u32", ("k", "eights")), *_ALONG_OUTPUTS),
    "gptq": (Buffer("codes", "u32", ("words", "n")), *_ALONG_OUTPUTS),
    "tiles": (
        Buffer("codes", "u32", ("down", "across", "unit")),
        Buffer("scales", "u16", (), optional=True),
        Buffer("zeros", "u16", (), optional=True),
    ),
}
"""What a part is made of, by its kind; in the order of repack.cu."""
_NUMBERS = tuple(Scalar(name, "i32") for name in ("kind", "n", "k", "group", "less_one", "first", "turns"))


@dataclass(frozen=True, slots=True)
class Part:
    """A 4-bit matrix on the GPU in the order of its file, and where its rows stand in a stack of several."""

    kind: Kind
    codes: Any
    """uint32: canonical (N, K/8), AWQ (K, N/8), GPTQ (K/8, N), tiles (units down, units across, words of a unit)"""
    scales: Any
    """float16 bits: canonical (N, groups), AWQ and GPTQ (groups, N); None of tiles"""
    zeros: Any
    """canonical (N, groups) uint16, AWQ and GPTQ (groups, ceil(N/8)) uint32; None of tiles"""
    shape: tuple[int, int]
    """(N, K)"""
    group: int
    less_one: bool = False
    """AWQ and GPTQ: zeros are stored less one."""
    first: int = 0
    """Where its first row stands."""
    turns: int = 1
    """How many parts take turns of eight rows."""

    def _arguments(self) -> tuple[Any, ...]:
        """Of a kernel, in the order of repack.cu. Raises EngineFault for a part that it cannot read."""
        n, k = self.shape
        if k % 8 or self.codes.shape != self._wanted() or (self.turns > 1 and n % 8):
            raise EngineFault(f"No kernel reads a 4-bit ({n}, {k}) of {self.kind} {self.codes.shape}.")
        numbers = (
            list(_PARTS).index(self.kind),
            n,
            k,
            self.group,
            int(self.less_one),
            self.first,
            self.turns,
        )
        return self.codes, self.scales, self.zeros, *numbers

    def _wanted(self) -> tuple[int, ...]:
        """The shape of `codes`."""
        n, k = self.shape
        if self.kind == "tiles":
            own = tile_group(self.group, k)
            layout = Layout(n, k, own or 0)
            return layout.unit_rows, layout.unit_columns, layout.unit_bytes // 4
        return {"canonical": (n, k // 8), "awq": (k, n // 8), "gptq": (k // 8, n)}[self.kind]

    def _grid(self) -> Shape:
        n, k = self.shape
        return Shape((ceil_div(n, ROWS), ceil_div(k // 8, WORDS), 1), (ROWS * WORDS, 1, 1))


def unit(bf16: bool) -> Unit:
    """The translation unit for one 16-bit type."""
    return Unit("repack", (("BF16", int(bf16)),))


@cache
def _stack(bf16: bool, kind: Kind) -> Kernel:
    outputs = (
        Buffer("out", "u32", ("N", "words")),
        Buffer("out scales", "u16", ("N", "groups")),
        Buffer("out zeros", "u16", ("N", "groups")),
    )
    return Kernel(unit(bf16), "stack", (*_PARTS[kind], *_NUMBERS, *outputs))


@cache
def _widen(bf16: bool, kind: Kind) -> Kernel:
    return Kernel(unit(bf16), "widen", (*_PARTS[kind], *_NUMBERS, Buffer("out", "u16", ("N", "K"))))


@cache
def _compare(bf16: bool, kind: Kind) -> Kernel:
    outputs = Buffer("values", "u16", ("rows", "K")), Buffer("wrong", "i32", (1,))
    places = Scalar("top", "i32"), Scalar("rows", "i32")
    return Kernel(unit(bf16), "compare", (*_PARTS[kind], *_NUMBERS, *outputs, *places))


@cache
def _repack(bf16: bool, unit_words: int) -> Kernel:
    sizes = ("n", "k", "across", "group_count", "group", "own", "tiles")
    return Kernel(
        unit(bf16),
        "repack",
        (*_CANONICAL, units_buffer(unit_words), *(Scalar(name, "i32") for name in sizes)),
    )


def stack(device: Device, bf16: bool, part: Part, codes: Any, scales: Any, zeros: Any) -> None:
    """Put `part` into its rows of a canonical stack: codes (R, K/8) uint32, scales and zeros (R, groups) uint16.

    Its groups are whole words.
    """
    if part.group % 8 and part.group < part.shape[1]:
        raise EngineFault(f"No kernel stacks groups of {part.group}.")
    _stack(bf16, part.kind).launch(device, part._grid(), *part._arguments(), codes, scales, zeros)


def widen(device: Device, bf16: bool, part: Part, values: Any) -> None:
    """Put `part` into its rows of `values` (R, K), rounded to 16 bit; float16 saturates."""
    if values.shape[1] != part.shape[1]:
        raise EngineFault(f"No room for {part.shape[1]} columns in {values.shape[1]}.")
    _widen(bf16, part.kind).launch(device, part._grid(), *part._arguments(), values)


def compare(device: Device, bf16: bool, part: Part, values: Any, wrong: Any, top: int = 0) -> None:
    """Add to `wrong` (1,) how many of `values` (rows, K), rows of the stack from `top` on, are not the part's."""
    if values.shape[1] != part.shape[1]:
        raise EngineFault(f"No {part.shape[1]} columns to compare in {values.shape[1]}.")
    _compare(bf16, part.kind).launch(
        device, part._grid(), *part._arguments(), values, wrong, top, len(values)
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
