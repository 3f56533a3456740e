"""The order in which the 4-bit kernels read a matrix: canonical codes → tiles and back, in plain NumPy. No GPU code.

W is the first operand of the tensor cores, as in Marlin (IST-DASLab/marlin) with the operands exchanged: a tile
holds 16 rows (outputs) and 128 columns (inputs) in the order in which the 32 lanes of a warp take them for
mma.m16n8k16, and equally for wgmma.m64nNk16, whose four warps have one tile each.

One tile, 1,024 bytes of codes, then a head of 64 bytes for each group of its columns (G = 128: one):

    codes  [half 0…1][lane 0…31][step 0…3] 32-bit words: a lane's 16-byte load holds four steps of 16 columns
    heads  [group][g 0…7][row half 0…1]    32-bit words: float16 scale below, zero (0…16) above

Lane 4g + c holds, in the word of step s, rows g and g + 8 and columns k = 16s + 2c + {0, 1, 8, 9}:

             k = 2c    2c + 1        2c + 8    2c + 9
    row g      pair 0 (low, high)      pair 2
    row g + 8  pair 1                  pair 3

Pair p has its low code at bits 4p and its high code at bits 4p + 16. So without a shift pairs 0 and 1 stand on the
mantissa bits of two float16 numbers each, and with the exponents of 1024 and of 64 ored in they read 1024 + code and
64 + code exactly; pairs 2 and 3 likewise after a shift by 8. A bfloat16 number has room for four bits at its end:
128 + code, after a shift by 4p. The zero is stored plainly: what a zero code would read is made of it in the same way,
and the difference is exact.

Four tiles below one another, 64 rows, make a unit, and memory holds units [64 rows][128 columns]: a run of units
along K is contiguous. Rows and columns that fill up the last unit have codes, scales and zeros of 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

VERSION = 2
"""Of the order, for what is stored in it; higher with every change."""
TILE_ROWS, TILE_COLUMNS = 16, 128
UNIT_TILES = 4
UNIT_ROWS = TILE_ROWS * UNIT_TILES
CODE_BYTES = TILE_ROWS * TILE_COLUMNS // 2
"""Of a tile."""
HEAD_BYTES = 4 * TILE_ROWS
"""Of one group in a tile."""
GROUPS = (128, 64, 32)
"""Columns that may share a scale in a tile."""

_HALVES, _STEPS, _LANES = 2, 4, 32
Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
Scales = NDArray[np.float16]
Values = TypeVar("Values", bound=NDArray[Any])


def tile_group(group: int, columns: int) -> int | None:
    """The group size with which tiles hold canonical groups of `group` columns, or None if they cannot.

    A group of several tiles (also one of all K columns) repeats its scale in each.
    """
    if group >= columns:
        return TILE_COLUMNS
    return next((own for own in GROUPS if group % own == 0), None)


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of one packed matrix."""

    rows: int
    """N"""
    columns: int
    """K"""
    group: int
    """G as tiles hold it: 128, 64 or 32."""

    @property
    def unit_rows(self) -> int:
        """Units below one another."""
        return -(-self.rows // UNIT_ROWS)

    @property
    def unit_columns(self) -> int:
        """Units side by side."""
        return -(-self.columns // TILE_COLUMNS)

    @property
    def tile_bytes(self) -> int:
        return CODE_BYTES + HEAD_BYTES * (TILE_COLUMNS // self.group)

    @property
    def unit_bytes(self) -> int:
        return UNIT_TILES * self.tile_bytes

    @property
    def nbytes(self) -> int:
        return self.unit_rows * self.unit_columns * self.unit_bytes

    @property
    def padded(self) -> tuple[int, int]:
        """Rows and columns with their filling."""
        return self.unit_rows * UNIT_ROWS, self.unit_columns * TILE_COLUMNS


# -- the permutations ---------------------------------------------------------------------------------------


def to_pairs(codes: Bytes) -> Words:
    """(64·R, 64·C) bytes of two codes → (R, C, tile, half, lane g, lane c, step) words, pair p in byte p.

    A byte holds two neighbouring columns, which are one pair; four bytes in a row go to the four lanes of a g.
    """
    rows, columns = codes.shape[0] // UNIT_ROWS, 2 * codes.shape[1] // TILE_COLUMNS
    # row = unit, tile, row half, g; word = unit, half, step, column half
    split = codes.view("<u4").reshape(rows, UNIT_TILES, 2, 8, columns, _HALVES, _STEPS, 2)
    lanes = turned([split[:, :, pair % 2, ..., pair // 2] for pair in range(4)])
    out = np.empty((rows, columns, UNIT_TILES, _HALVES, 8, 4, _STEPS), np.uint32)
    for c, words in enumerate(lanes):
        out[..., c, :] = words.transpose(0, 3, 1, 4, 2, 5)
    return out


def from_pairs(pairs: Words) -> Bytes:
    """Inverse of `to_pairs`."""
    rows, columns = pairs.shape[:2]
    out = np.empty((rows, UNIT_TILES, 2, 8, columns, _HALVES, _STEPS, 2), np.uint32)
    for pair, words in enumerate(turned([pairs[..., c, :] for c in range(4)])):
        out[:, :, pair % 2, ..., pair // 2] = words.transpose(0, 2, 4, 1, 3, 5)
    return out.view(np.uint8).reshape(rows * UNIT_ROWS, columns * TILE_COLUMNS // 2)


def turned(words: Sequence[Words]) -> list[Words]:
    """Four arrays of words as a 4 × 4 matrix of bytes, transposed: byte i of word j becomes byte j of word i."""
    even, odd, low = np.uint32(0x00FF00FF), np.uint32(0xFF00FF00), np.uint32(0x0000FFFF)
    eight, sixteen = np.uint32(8), np.uint32(16)
    a, b, c, d = words
    ab = (a & even) | ((b & even) << eight), ((a & odd) >> eight) | (b & odd)
    cd = (c & even) | ((d & even) << eight), ((c & odd) >> eight) | (d & odd)
    first = [(left & low) | (right << sixteen) for left, right in zip(ab, cd, strict=True)]
    second = [(left >> sixteen) | (right & ~low) for left, right in zip(ab, cd, strict=True)]
    return [first[0], first[1], second[0], second[1]]


def to_words(pairs: Words) -> Words:
    """Pair p in byte p, low code in the low nibble → pair p at bits 4p and 4p + 16."""
    return _gathered(pairs & _NIBBLES) | (_gathered((pairs >> np.uint32(4)) & _NIBBLES) << np.uint32(16))


def from_words(words: Words) -> Words:
    """Inverse of `to_words`."""
    return _scattered(words & np.uint32(0xFFFF)) | (_scattered(words >> np.uint32(16)) << np.uint32(4))


_NIBBLES = np.uint32(0x0F0F0F0F)


def _gathered(nibbles: Words) -> Words:
    """The low nibbles of four bytes, side by side in 16 bits."""
    twos = (nibbles | (nibbles >> np.uint32(4))) & np.uint32(0x00FF00FF)
    gathered: Words = (twos | (twos >> np.uint32(8))) & np.uint32(0xFFFF)
    return gathered


def _scattered(nibbles: Words) -> Words:
    """Inverse of `_gathered`."""
    twos = (nibbles | (nibbles << np.uint32(8))) & np.uint32(0x00FF00FF)
    scattered: Words = (twos | (twos << np.uint32(4))) & _NIBBLES
    return scattered


def to_heads(scales: Scales, zeros: Bytes) -> Words:
    """(64·R, groups·C) scales and zeros → (R, C, tile, group, g, row half) words."""
    words = scales.view(np.uint16).astype(np.uint32) | (zeros.astype(np.uint32) << np.uint32(16))
    rows = len(words) // UNIT_ROWS
    return words.reshape(rows, UNIT_TILES, 2, 8, -1).transpose(0, 4, 1, 3, 2)


# -- both directions ----------------------------------------------------------------------------------------


def pack(codes: Bytes, scales: Scales, zeros: Bytes, group: int, columns: int) -> Bytes:
    """Canonical codes (N, ceil(K/2)), scales and zeros (N, ceil(K/G)) → (units down, units across, unit_bytes).

    `group` is the canonical G, of which `tile_group` must make something.
    """
    own = tile_group(group, columns)
    assert own is not None, group
    layout = Layout(len(codes), columns, own)
    wide = np.zeros((layout.padded[0], layout.padded[1] // 2), np.uint8)
    wide[: layout.rows, : codes.shape[1]] = codes
    if columns % 2:
        wide[:, codes.shape[1] - 1] &= 15
    out = np.zeros((layout.unit_rows, layout.unit_columns, UNIT_TILES, layout.tile_bytes), np.uint8)
    for down in range(layout.unit_rows):  # one row of units stays in the cache
        words = to_words(to_pairs(wide[down * UNIT_ROWS : (down + 1) * UNIT_ROWS]))
        out[down, ..., :CODE_BYTES] = words.view(np.uint8).reshape(*out.shape[1:3], CODE_BYTES)
    heads = to_heads(_spread(scales, group, layout), _spread(zeros, group, layout))
    per_tile = TILE_COLUMNS // own
    split = heads.reshape(layout.unit_rows, layout.unit_columns, per_tile, UNIT_TILES, 8, 2)
    moved = np.ascontiguousarray(split.transpose(0, 1, 3, 2, 4, 5))
    out[..., CODE_BYTES:] = moved.reshape(*out.shape[:3], -1).view(np.uint8)
    return out.reshape(layout.unit_rows, layout.unit_columns, layout.unit_bytes)


def unpack(packed: Bytes, group: int, rows: int, columns: int) -> tuple[Bytes, Scales, Bytes]:
    """Inverse of `pack`: canonical codes, scales and zeros of an (N, K) matrix with groups of `group`."""
    own = tile_group(group, columns)
    assert own is not None, group
    layout = Layout(rows, columns, own)
    tiles = packed.reshape(layout.unit_rows, layout.unit_columns, UNIT_TILES, layout.tile_bytes)
    codes = np.empty((rows, -(-columns // 2)), np.uint8)
    for down in range(layout.unit_rows):  # one row of units stays in the cache
        words = np.ascontiguousarray(tiles[down : down + 1, ..., :CODE_BYTES]).view(np.uint32)
        wide = from_pairs(from_words(words.reshape(*words.shape[:3], _HALVES, 8, 4, _STEPS)))
        part = codes[down * UNIT_ROWS : (down + 1) * UNIT_ROWS]
        part[:] = wide[: len(part), : codes.shape[1]]
    heads = np.ascontiguousarray(tiles[..., CODE_BYTES:]).view(np.uint32)
    split = heads.reshape(*heads.shape[:3], -1, 8, 2)  # unit row, unit column, tile, group, g, row half
    lines = split.transpose(0, 2, 5, 4, 1, 3).reshape(layout.padded[0], -1)
    first = lines[:rows, :: max(1, min(group, columns) // own)][:, : -(-columns // group)]
    return (
        codes,
        (first & np.uint32(0xFFFF)).astype(np.uint16).view(np.float16),
        (first >> np.uint32(16)).astype(np.uint8),
    )


def _spread(values: Values, group: int, layout: Layout) -> Values:
    """(N, ceil(K/G)) values → one for each of the tiles' groups, zeros where rows or columns are filled up."""
    rows, columns = layout.padded
    out = np.zeros((rows, columns // layout.group), values.dtype)
    used = -(-layout.columns // layout.group)
    source = np.arange(used) * layout.group // group
    out[: layout.rows, :used] = values[:, source]
    return out  # type: ignore[return-value]
