"""The order in which the CPU loops read a matrix, and its NumPy packing. No compiled code.

Sixteen output rows make a *tile*: their values stand side by side, so that one vector load gives one
column (eight columns of 4-bit codes) of sixteen rows. Tiles follow one another in one byte stream, and
within a tile the groups of K do, each with its scales in front: a matrix-vector product reads a
contiguous stream once. Rows that fill up the last tile and columns that fill up the last group are zero.

    4 bit   group: 16 scales, 16 zeros or offsets, then G/8 × 16 words; nibble j of a word is column j
    8 bit   group: 16 scales, then G × 16 signed bytes
    dense   K × 16 values of 4 or 2 bytes

Scales, zeros and offsets are halves where the checkpoint's are, else float32 (`wide`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LANES = 16
"""Rows of a tile."""
WORD = 8
"""4-bit codes in a 32-bit word."""
ALIGNMENT = 64
"""Bytes of a cache line."""
CHUNK_BYTES = 64 << 20
FOUR, EIGHT, SINGLE, HALF, BRAIN = range(5)
"""Forms: 4-bit, 8-bit, float32, float16, bfloat16."""

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Layout:
    """How one stream is ordered."""

    form: int
    columns: int
    """K"""
    group: int
    """Columns that share a scale, padded to whole words; all (padded) columns of a dense matrix."""
    wide: bool = False
    """Scales are float32."""
    zeros: bool = False
    """4 bit: the second half of a group's head holds zeros, not offsets."""

    @property
    def groups(self) -> int:
        return -(-self.columns // self.group)

    @property
    def padded(self) -> int:
        """Columns of the stream."""
        return self.groups * self.group

    @property
    def head_vectors(self) -> int:
        """Vectors of sixteen scales, zeros or offsets before a group's codes."""
        return {FOUR: 2, EIGHT: 1}.get(self.form, 0)

    @property
    def head_type(self) -> np.dtype[Any]:
        return np.dtype(np.float32 if self.wide else np.float16)

    @property
    def head_bytes(self) -> int:
        """Of a group, before its codes."""
        return self.head_vectors * LANES * self.head_type.itemsize

    @property
    def group_bytes(self) -> int:
        """Bytes of a group, head included."""
        bits = {FOUR: 4, EIGHT: 8, SINGLE: 32}.get(self.form, 16)
        return self.head_bytes + self.group * LANES * bits // 8

    @property
    def tile_bytes(self) -> int:
        return self.groups * self.group_bytes


def tile_count(rows: int) -> int:
    """Tiles that hold so many rows; the last is filled up with zeros."""
    return -(-rows // LANES)


def tile_map(parts: Sequence[int]) -> NDArray[np.int32]:
    """(tiles, 2): first output and number of outputs of each tile; every part starts a new tile."""
    pairs, start = [], 0
    for rows in parts:
        pairs += [(start + at, min(LANES, rows - at)) for at in range(0, rows, LANES)]
        start += rows
    return np.array(pairs, np.int32).reshape(-1, 2)


class Arena:
    """Memory for streams, taken in large chunks that the system backs with large pages.

    With ordinary pages the same matrix-vector product takes a fifth longer. Nothing is given back but
    with the last stream of a chunk.
    """

    def __init__(self, chunk: int = CHUNK_BYTES) -> None:
        self._chunk = chunk
        self._free: Bytes = np.empty(0, np.uint8)

    def take(self, size: int) -> Bytes:
        """Uninitialised bytes on a cache line's boundary."""
        if size > len(self._free):
            raw = np.empty(max(size, self._chunk) + ALIGNMENT, np.uint8)
            self._free = raw[-raw.ctypes.data % ALIGNMENT :]
        taken, self._free = self._free[:size], self._free[-(-size // ALIGNMENT) * ALIGNMENT :]
        return taken


def fill(stream: Bytes, layout: Layout, codes: NDArray[Any], heads: Sequence[NDArray[Any]] = ()) -> None:
    """Write the tiles of one matrix.

    stream: (tiles · tile_bytes,); codes: (N, K) values, or (N, ceil(K/2)) bytes of two 4-bit codes, low
    nibble first; heads: what stands before each group's codes, (N, ceil(K/G)) each.
    """
    tiles = tile_count(codes.shape[0])
    groups = stream.reshape(tiles, layout.groups, layout.group_bytes)
    width = LANES * layout.head_type.itemsize
    for position, values in enumerate(heads):
        padded = _pad(values.astype(layout.head_type, copy=False), tiles * LANES, layout.groups)
        _write(groups[..., position * width : (position + 1) * width], padded)
    if layout.form == FOUR:
        codes = _pad(codes, tiles * LANES, layout.padded // 2).view("<u4")
    else:
        codes = _pad(codes, tiles * LANES, layout.padded)
    _write(groups[..., layout.head_bytes :], codes)


def _pad(values: NDArray[Any], rows: int, columns: int) -> NDArray[Any]:
    """Zeros below and to the right, up to (rows, columns); contiguous."""
    if values.shape == (rows, columns):
        return np.ascontiguousarray(values)
    padded = np.zeros((rows, columns), values.dtype)
    padded[: values.shape[0], : values.shape[1]] = values
    return padded


def _write(target: Bytes, values: NDArray[Any]) -> None:
    """(tiles · 16, groups · m) values → (tiles, groups, bytes) of the stream: rows side by side."""
    tiles, groups, _ = target.shape
    across = values.reshape(tiles, LANES, groups, -1).transpose(0, 2, 3, 1)
    strides = (*target.strides[:2], LANES * values.itemsize, values.itemsize)
    typed = target.view(values.dtype)
    np.lib.stride_tricks.as_strided(typed, across.shape, strides)[:] = across
