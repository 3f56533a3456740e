"""Block formats of GGUF tensors → canonical weights; exact unless the format's entry says otherwise.

A row is a run of blocks of 32 or 256 values. Most formats are linear in small codes, so they become
Packed4 or Packed8 with the same numbers and stay small in memory:

    F32 F16 BF16   Dense                          Q2_K   Packed4, groups of 16, offsets
    Q4_0           Packed4, groups of 32, zero 8   Q3_K   Packed4, groups of 16, zero 4
    Q4_1           Packed4, groups of 32, offsets  Q4_K   Packed4, groups of 32, offsets
    Q5_0           Packed8, groups of 32           Q6_K   Packed8, groups of 16
    Q8_0           Packed8, groups of 32           Q5_1 Q5_K   Dense float16, rounded

Super-scales times sub-scales have at most 20 significant bits, so their float32 products are exact.
Source of the layouts: ggml-common.h and ggml-quants.c of ggml-org/ggml.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import Dense, Packed4, Packed8, Weight

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
FOUR = np.uint8(4)
LARGEST = 65504.0
"""Of float16: where a format is rounded to it, values past it saturate."""


@dataclass(frozen=True, slots=True)
class Format:
    """One block format."""

    name: str
    block: int
    """Values in a block."""
    nbytes: int
    """Bytes of a block."""
    convert: Callable[[Bytes], Weight]
    """(N, bytes of a row) → (N, K)"""


def canonical(form: Format, rows: Bytes, shape: tuple[int, ...]) -> Weight:
    """The canonical weight of a tensor's bytes (rows, bytes of a row); a vector is always Dense."""
    weight = form.convert(rows)
    if len(shape) > 1:
        return weight
    data = weight.data if isinstance(weight, Dense) else weight.dequantise()
    return Dense(data.reshape(shape))


# -- helpers: B blocks of a tensor, (N, bytes of a row) → (B, …) ----------------------------------------


def _blocks(rows: Bytes, nbytes: int) -> Bytes:
    return rows.reshape(-1, nbytes)


def _half(blocks: Bytes, at: int) -> NDArray[np.float16]:
    """The float16 at byte `at` of each block: (B, 1)."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2")


def _pairs(low_half_first: Bytes) -> Bytes:
    """(B, 16) bytes with values j and j + 16 → (B, 16) bytes with values 2j and 2j + 1.

    Two bytes at a time: their low nibbles make one byte of the first half, their high ones of the second.
    """
    twos = np.ascontiguousarray(low_half_first).view("<u2")
    first = (twos & 0x000F) | ((twos >> 4) & 0x00F0)
    second = ((twos >> 4) & 0x000F) | ((twos >> 8) & 0x00F0)
    return np.concatenate([first, second], axis=1).astype(np.uint8)


def _pack(codes: Bytes) -> Bytes:
    """(B, K) codes → (B, K/2) bytes."""
    return codes[:, 0::2] | (codes[:, 1::2] << FOUR)


def _high_bits(blocks: Bytes, at: int) -> Bytes:
    """32 bits from byte `at` of each block on, one a byte: (B, 32)."""
    return np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")


def _packed4(rows: Bytes, codes: Bytes, scales: Any, zero: int | None, offsets: Any, group: int) -> Packed4:
    n = rows.shape[0]
    codes, scales = codes.reshape(n, -1), scales.reshape(n, -1)
    return Packed4(
        codes=codes,
        scales=scales,
        zeros=None if zero is None else np.full(scales.shape, zero, np.uint8),
        offsets=None if offsets is None else offsets.reshape(n, -1),
        group=group,
        columns=2 * codes.shape[1],
    )


def _packed8(rows: Bytes, codes: NDArray[np.int8], scales: Any, group: int) -> Packed8:
    n = rows.shape[0]
    return Packed8(codes.reshape(n, -1), scales.reshape(n, -1), group)


def _rounded(rows: Bytes, values: Floats) -> Dense:
    limited = np.clip(values, -LARGEST, LARGEST)
    return Dense(limited.reshape(rows.shape[0], -1).astype(np.float16))


# -- plain and 32-value formats -------------------------------------------------------------------------


def _plain(dtype: str) -> Callable[[Bytes], Weight]:
    return lambda rows: Dense(rows.view(dtype))


def _q4_0(rows: Bytes) -> Weight:
    """scale f16, 16 bytes"""
    blocks = _blocks(rows, 18)
    return _packed4(rows, _pairs(blocks[:, 2:]), _half(blocks, 0), 8, None, 32)


def _q4_1(rows: Bytes) -> Weight:
    """scale f16, offset f16, 16 bytes"""
    blocks = _blocks(rows, 20)
    return _packed4(rows, _pairs(blocks[:, 4:]), _half(blocks, 0), None, _half(blocks, 2), 32)


def _five_bits(nibbles: Bytes, high: Bytes) -> Bytes:
    """(B, 16) nibbles and (B, 32) fifth bits → (B, 32) codes."""
    codes: Bytes = np.concatenate([nibbles & 15, nibbles >> FOUR], axis=1)
    return codes | (high << FOUR)


def _q5_0(rows: Bytes) -> Weight:
    """scale f16, 32 fifth bits, 16 bytes"""
    blocks = _blocks(rows, 22)
    codes = _five_bits(blocks[:, 6:], _high_bits(blocks, 2)).view(np.int8) - np.int8(16)
    return _packed8(rows, codes, _half(blocks, 0), 32)


def _q5_1(rows: Bytes) -> Weight:
    """scale f16, offset f16, 32 fifth bits, 16 bytes"""
    blocks = _blocks(rows, 24)
    codes = _five_bits(blocks[:, 8:], _high_bits(blocks, 4)).astype(np.float32)
    values = codes * _half(blocks, 0).astype(np.float32) + _half(blocks, 2).astype(np.float32)
    return _rounded(rows, values)


def _q8_0(rows: Bytes) -> Weight:
    """scale f16, 32 signed bytes"""
    blocks = _blocks(rows, 34)
    return _packed8(rows, np.ascontiguousarray(blocks[:, 2:]).view(np.int8), _half(blocks, 0), 32)


# -- 256-value formats: a scale of scales, and small scales of groups ------------------------------------


def _wide(blocks: Bytes, at: int) -> Floats:
    return _half(blocks, at).astype(np.float32)


def _two_bits(quarters: Bytes) -> Bytes:
    """(B, 64) bytes → (B, 256) codes: byte l of half h holds values 128h + 32j + l, j = 0…3."""
    halves = quarters.reshape(-1, 2, 1, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    return ((halves >> shifts) & np.uint8(3)).reshape(-1, 256)


def _q2_k(rows: Bytes) -> Weight:
    """16 bytes (scale, minimum), 64 bytes of codes, scale f16, scale of minima f16"""
    blocks = _blocks(rows, 84)
    scales = _wide(blocks, 80) * (blocks[:, :16] & 15)
    offsets = -_wide(blocks, 82) * (blocks[:, :16] >> 4)
    return _packed4(rows, _pack(_two_bits(blocks[:, 16:80])), scales, None, offsets, 16)


def _q3_k(rows: Bytes) -> Weight:
    """256 third bits, 64 bytes of codes, 12 bytes of scales, scale f16"""
    blocks = _blocks(rows, 110)
    third = np.unpackbits(blocks[:, None, :32], axis=1, bitorder="little")
    codes = _two_bits(blocks[:, 32:96]) | (third.reshape(-1, 256) << np.uint8(2))
    packed = blocks[:, 96:108]
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 4, 1)
    high = ((packed[:, None, 8:] >> shifts) & 3).reshape(-1, 16)
    scales = _wide(blocks, 108) * ((low | (high << 4)).astype(np.float32) - 32)
    return _packed4(rows, _pack(codes), scales, 4, None, 16)


def _scales_and_minima(packed: Bytes) -> tuple[Bytes, Bytes]:
    """(B, 12) bytes → eight 6-bit scales and minima: four whole ones, then four split into 4 + 2 bits."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], axis=1)
    minima = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=1)
    return scales, minima


def _eight_groups(nibbles: Bytes) -> Bytes:
    """(B, 128) bytes → (B, 8, 32) codes: 32 bytes hold a group in their low and one in their high nibbles."""
    quarters = nibbles.reshape(-1, 4, 1, 32)
    return np.concatenate([quarters & 15, quarters >> 4], axis=2).reshape(-1, 8, 32)


def _q4_k(rows: Bytes) -> Weight:
    """scale f16, scale of minima f16, 12 bytes of scales and minima, 128 bytes of codes"""
    blocks = _blocks(rows, 144)
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    codes = _pack(_eight_groups(blocks[:, 16:]).reshape(-1, 256))
    return _packed4(rows, codes, _wide(blocks, 0) * scales, None, -_wide(blocks, 2) * minima, 32)


def _q5_k(rows: Bytes) -> Weight:
    """as Q4_K, with 256 fifth bits before the codes: bit g of byte l belongs to value l of group g"""
    blocks = _blocks(rows, 176)
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    fifth = np.unpackbits(blocks[:, None, 16:48], axis=1, bitorder="little")
    codes = (_eight_groups(blocks[:, 48:]) | (fifth << 4)).astype(np.float32)
    scale, offset = _wide(blocks, 0) * scales, _wide(blocks, 2) * minima
    values = codes * scale[:, :, None] - offset[:, :, None]
    return _rounded(rows, values)


def _q6_k(rows: Bytes) -> Weight:
    """128 bytes of low nibbles, 64 bytes of high bits, 16 signed scales, scale f16"""
    blocks = _blocks(rows, 210)
    nibbles = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([nibbles & 15, nibbles >> 4], axis=2).reshape(-1, 256)
    codes = (low | (_two_bits(blocks[:, 128:192]) << 4)).view(np.int8) - np.int8(32)
    scales = _wide(blocks, 208) * np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return _packed8(rows, codes, scales, 16)


FORMATS = {
    0: Format("F32", 1, 4, _plain("<f4")),
    1: Format("F16", 1, 2, _plain("<f2")),
    2: Format("Q4_0", 32, 18, _q4_0),
    3: Format("Q4_1", 32, 20, _q4_1),
    6: Format("Q5_0", 32, 22, _q5_0),
    7: Format("Q5_1", 32, 24, _q5_1),
    8: Format("Q8_0", 32, 34, _q8_0),
    10: Format("Q2_K", 256, 84, _q2_k),
    11: Format("Q3_K", 256, 110, _q3_k),
    12: Format("Q4_K", 256, 144, _q4_k),
    13: Format("Q5_K", 256, 176, _q5_k),
    14: Format("Q6_K", 256, 210, _q6_k),
    30: Format("BF16", 1, 2, _plain("<u2")),
}
"""By the number that stands in a tensor's header."""
