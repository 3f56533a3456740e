"""AWQ checkpoints of the kinds "gemm" and "gemv" → canonical 4-bit codes.

For a linear layer with K inputs, N outputs and groups of G inputs, "gemm":

    qweight  int32 (K, N/8)      eight 4-bit codes a word, along N
    qzeros   int32 (K/G, N/8)    the zeros, in the same order
    scales   f16   (K/G, N)      in natural order

Nibble i of word c belongs to output 8c + ORDER[i]: even outputs first, then odd ones. And "gemv":

    qweight  int32 (N, K/8)      eight codes a word, along K, in natural order
    qzeros   int32 (N, Z)        the zeros, along K/G, in natural order, Z ≥ K/G/8: rows are padded
    scales   f16   (N, 8·Z)

The weight is (code - zero) · scale. Layouts as written by AutoAWQ (casper-hansen/AutoAWQ,
awq/modules/linear/gemm.py and gemv.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import Packed4

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Output, within eight, of each nibble from the lowest on."""
_TILE = 64
"""Words unpacked at once, so that a tile stays in the cache: best of 8 … 2,368 as measured, by half."""
_LOW, _HIGH, _FOUR = np.uint32(0x0F0F0F0F), np.uint32(0xF0F0F0F0), np.uint32(4)

Words = NDArray[np.int32]


def awq_weight(qweight: Words, qzeros: Words, scales: NDArray[Any], group: int) -> Packed4:
    """Canonical form of one layer; `group` is G, already resolved to K where the file says -1.

    `scales` is (K/G, N) float16 or float32.
    """
    return Packed4(
        codes=_pairs_along_inputs(qweight),
        scales=np.ascontiguousarray(scales.T),
        zeros=_nibbles(qzeros),
        offsets=None,
        group=group,
        columns=qweight.shape[0],
    )


def awq_rows_weight(qweight: Words, qzeros: Words, scales: NDArray[Any], group: int) -> Packed4:
    """Canonical form of one layer of the kind "gemv"; `group` as above, `scales` (N, 8·Z)."""
    outputs, width = qweight.shape
    groups = -(-8 * width // group)
    pairs = np.ascontiguousarray(qzeros).view(np.uint8)
    zeros = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(outputs, -1)
    return Packed4(
        codes=np.ascontiguousarray(qweight).view(np.uint8),
        scales=np.ascontiguousarray(scales[:, :groups]),
        zeros=np.ascontiguousarray(zeros[:, :groups]),
        offsets=None,
        group=group,
        columns=8 * width,
    )


def _pairs_along_inputs(words: Words) -> NDArray[np.uint8]:
    """(K, N/8) words → (N, ceil(K/2)) bytes: inputs 2j and 2j + 1 of one output in byte j.

    Works on whole words, eight codes at a time: `low` collects the even nibbles of two rows, `high` the
    odd ones; after the transposition each byte of them is one output's pair.
    """
    rows = words.view(np.uint32)
    if rows.shape[0] % 2:
        rows = np.vstack([rows, np.zeros((1, rows.shape[1]), np.uint32)])
    pairs, width = rows.shape[0] // 2, rows.shape[1]
    out = np.empty((width, 8, pairs), np.uint8)
    for first in range(0, width, _TILE):
        tile = slice(first, first + _TILE)
        even, odd = rows[0::2, tile], rows[1::2, tile]
        low = ((even & _LOW) | ((odd & _LOW) << _FOUR)).T.copy()
        high = (((even >> _FOUR) & _LOW) | (odd & _HIGH)).T.copy()
        for byte in range(4):
            shift = np.uint32(8 * byte)
            out[tile, ORDER[2 * byte]] = (low >> shift).astype(np.uint8)
            out[tile, ORDER[2 * byte + 1]] = (high >> shift).astype(np.uint8)
    return out.reshape(8 * width, pairs)


def _nibbles(words: Words) -> NDArray[np.uint8]:
    """(K/G, N/8) words → (N, K/G), one zero a byte."""
    groups, width = words.shape
    out = np.empty((width, 8, groups), np.uint8)
    for nibble, output in enumerate(ORDER):
        out[:, output] = ((words.view(np.uint32) >> np.uint32(4 * nibble)) & np.uint32(15)).T
    return out.reshape(8 * width, groups)
