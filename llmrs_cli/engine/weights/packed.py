"""Canonical forms of a weight: what every checkpoint format becomes and every backend starts from.

A linear layer computes y = x · Wᵀ (+ bias) with W of shape (N, K): N outputs, K inputs, K contiguous.
G is the group size along K, K/G the number of groups (the last one may be short). Backends reorder
these as they like (`Backend.prepare_linear`).

Byte order of 4-bit codes: byte j of a row holds column 2j in its low nibble and 2j + 1 in its high one.

Two more forms are as files hold them (`Words4`, `Tiles4`): a backend that puts weights in order itself gets
those, so that nothing is put in order twice. `canonical` makes the usual form of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.weights.words import AWQ_ORDER, Words, nibbles_along_outputs, pairs_along_inputs
from llmrs_cli.kernels import marlin_layout

Dtype = Literal["float32", "float16", "bfloat16"]
Selection = slice | NDArray[np.integer]
"""Some rows: a run of them, or their numbers."""


def bf16_to_f32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Widen bfloat16 bit patterns; exact, same shape."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to bfloat16 bit patterns, to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x0040
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


@dataclass(frozen=True, slots=True)
class Dense:
    """A plain matrix or vector in its stored precision."""

    data: NDArray[np.float32] | NDArray[np.float16] | NDArray[np.uint16]
    """(N, K) or (N,); uint16 holds bfloat16 bit patterns"""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def dtype(self) -> Dtype:
        return {"f": "float32", "e": "float16", "H": "bfloat16"}[self.data.dtype.char]  # type: ignore[return-value]

    def dequantise(self) -> NDArray[np.float32]:
        """float32 values, exact."""
        if self.data.dtype == np.uint16:
            return bf16_to_f32(self.data)  # type: ignore[arg-type]
        return self.data.astype(np.float32)

    def rows(self, chosen: Selection) -> Dense:
        """Some rows, in the same form."""
        return Dense(self.data[chosen])


@dataclass(frozen=True, slots=True)
class Packed4:
    """Unsigned 4-bit codes q with a scale s per group and row, and one of two kinds of zero.

    `zeros` z (uint8, 0…16):   w = (q - z) · s        AWQ, GPTQ, compressed-tensors, GGUF Q4_0
    `offsets` m (float):       w = q · s + m          GGUF Q4_1
    """

    codes: NDArray[np.uint8]
    """(N, ceil(K/2))"""
    scales: NDArray[np.float32] | NDArray[np.float16]
    """(N, ceil(K/G)), in the checkpoint's own precision"""
    zeros: NDArray[np.uint8] | None
    """(N, ceil(K/G)), or None if there are offsets"""
    offsets: NDArray[np.float32] | NDArray[np.float16] | None
    """(N, ceil(K/G)), or None if there are zeros"""
    group: int
    columns: int
    """K"""

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.columns

    def unpack(self) -> NDArray[np.uint8]:
        """The codes, one a byte: (N, K)."""
        n, k = self.shape
        wide = np.empty((n, self.codes.shape[1] * 2), np.uint8)
        wide[:, 0::2] = self.codes & 15
        wide[:, 1::2] = self.codes >> 4
        return wide[:, :k]

    def dequantise(self) -> NDArray[np.float32]:
        """float32 values (N, K): products in float32, as every kernel that keeps codes exact."""
        k, g = self.columns, self.group
        q = self.unpack().astype(np.float32)
        scale = np.repeat(self.scales.astype(np.float32), g, axis=1)[:, :k]
        if self.zeros is not None:
            return (q - np.repeat(self.zeros.astype(np.float32), g, axis=1)[:, :k]) * scale
        assert self.offsets is not None
        return q * scale + np.repeat(self.offsets.astype(np.float32), g, axis=1)[:, :k]

    def rows(self, chosen: Selection) -> Packed4:
        """Some rows, in the same form."""
        return replace(
            self,
            codes=self.codes[chosen],
            scales=self.scales[chosen],
            zeros=None if self.zeros is None else self.zeros[chosen],
            offsets=None if self.offsets is None else self.offsets[chosen],
        )


@dataclass(frozen=True, slots=True)
class Permuted4:
    """4-bit codes whose columns were sorted by group (GPTQ with `desc_act`): x · Wᵀ is x[:, inputs] · weightᵀ.

    A backend that does not know the form may widen it: `dequantise` gives the columns in their natural order.
    """

    weight: Packed4
    """Columns in groups, as ever."""
    inputs: NDArray[np.int32]
    """(K,): which input each column of `weight` belongs to."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape

    def dequantise(self) -> NDArray[np.float32]:
        """float32 values (N, K), column k for input k."""
        values = np.empty(self.shape, np.float32)
        values[:, self.inputs] = self.weight.dequantise()
        return values

    def rows(self, chosen: Selection) -> Permuted4:
        """Some rows, in the same form."""
        return replace(self, weight=self.weight.rows(chosen))


@dataclass(frozen=True, slots=True)
class Packed8:
    """Signed 8-bit codes with a scale per group of G columns: w = q · s (GGUF Q8_0: G = 32)."""

    codes: NDArray[np.int8]
    """(N, K)"""
    scales: NDArray[np.float32] | NDArray[np.float16]
    """(N, ceil(K/G))"""
    group: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape

    def dequantise(self) -> NDArray[np.float32]:
        """float32 values (N, K)."""
        scale = np.repeat(self.scales.astype(np.float32), self.group, axis=1)
        return self.codes.astype(np.float32) * scale[:, : self.codes.shape[1]]

    def rows(self, chosen: Selection) -> Packed8:
        """Some rows, in the same form."""
        return replace(self, codes=self.codes[chosen], scales=self.scales[chosen])


Weight = Dense | Packed4 | Permuted4 | Packed8


# -- as files hold them ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Words4:
    """4-bit codes in the words of a file: AWQ's layout "gemm", or GPTQ's. w = (q - z) · s.

    A word holds eight codes, from its lowest bits on: in AWQ's along outputs in the order AWQ_ORDER, in GPTQ's
    along inputs. Zeros lie along outputs in both, in AWQ's order or plainly.
    """

    kind: Literal["awq", "gptq"]
    codes: Words
    """AWQ's (K, N/8), GPTQ's (K/8, N)"""
    scales: NDArray[np.float32] | NDArray[np.float16]
    """(ceil(K/G), N)"""
    zeros: Words
    """(ceil(K/G), ceil(N/8))"""
    group: int
    less_one: bool = False
    """Zeros are stored less one."""

    @property
    def columns(self) -> int:
        """K"""
        rows: int = self.codes.shape[0]
        return rows if self.kind == "awq" else 8 * rows

    @property
    def shape(self) -> tuple[int, int]:
        return self.scales.shape[1], self.columns

    def outputs(self, chosen: slice) -> Words4:
        """Some outputs, a multiple of 8 from a multiple of 8 on, as views."""
        eights = slice(chosen.start // 8, -(-chosen.stop // 8))
        codes = self.codes[:, eights if self.kind == "awq" else chosen]
        return replace(self, codes=codes, scales=self.scales[:, chosen], zeros=self.zeros[:, eights])

    def plain_zeros(self) -> NDArray[np.uint8]:
        """(ceil(K/G), N), one a byte, 0…16."""
        order = AWQ_ORDER if self.kind == "awq" else tuple(range(8))
        zeros = nibbles_along_outputs(self.zeros, order)[:, : self.shape[0]]
        return zeros + np.uint8(self.less_one)

    def canonical(self) -> Packed4:
        """The same weight in the usual form."""
        if self.kind == "awq":
            codes = pairs_along_inputs(self.codes)
        else:
            codes = np.ascontiguousarray(self.codes.T).view(np.uint8)
        return Packed4(
            codes=codes,
            scales=np.ascontiguousarray(self.scales.T),  # type: ignore[arg-type]  # its dtype stays
            zeros=np.ascontiguousarray(self.plain_zeros().T),
            offsets=None,
            group=self.group,
            columns=self.columns,
        )

    def dequantise(self) -> NDArray[np.float32]:
        """float32 values (N, K)."""
        return self.canonical().dequantise()

    def rows(self, chosen: Selection) -> Packed4:
        """Some rows, in the usual form."""
        return self.canonical().rows(chosen)


@dataclass(frozen=True, slots=True)
class Tiles4:
    """4-bit codes with float16 scales and zeros in the order of the CUDA kernels (`kernels.marlin_layout`)."""

    tiles: NDArray[np.uint8]
    """(units down, units across, bytes of a unit)"""
    group: int
    shape: tuple[int, int]

    def canonical(self) -> Packed4:
        """The same weight in the usual form."""
        codes, scales, zeros = marlin_layout.unpack(self.tiles, self.group, *self.shape)
        return Packed4(codes, scales, zeros, None, self.group, self.shape[1])

    def dequantise(self) -> NDArray[np.float32]:
        """float32 values (N, K)."""
        return self.canonical().dequantise()

    def rows(self, chosen: Selection) -> Packed4:
        """Some rows, in the usual form."""
        return self.canonical().rows(chosen)


Stored = Weight | Words4 | Tiles4


def canonical(weight: Stored) -> Weight:
    """`weight` in its usual form if it is as a file holds it."""
    return weight.canonical() if isinstance(weight, Words4 | Tiles4) else weight
