"""Weights on the GPU: 16-bit matrices with an optional bias. Packed forms are widened while loading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cupy as cp
import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.backends.base import UnsupportedOp
from llmrs_cli.engine.backends.cuda_upload import Upload
from llmrs_cli.engine.weights.packed import Dense, Weight, f32_to_bf16

SLAB_VALUES = 1 << 24
"""Values widened at a time while loading."""
PAIR_ROWS = 8
"""Rows of gate, then of up, that lie together."""
Bits = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class CudaLinear:
    """A (N, K) matrix of bit patterns, bfloat16 or float16."""

    weight: Any
    """(N, K) uint16"""
    bias: Any
    """(N,) float32, or None"""
    narrow_bias: Any
    """the same as 16-bit patterns"""
    bf16: bool
    note: str

    @property
    def shape(self) -> tuple[int, int]:
        n, k = self.weight.shape
        return n, k


def load_linear(
    parts: Sequence[Weight], bias: Sequence[Dense | None], bf16: bool, upload: Upload
) -> CudaLinear:
    """Stack parts along N on the GPU; two equal parts (gate and up) in turns of 8 rows, as the kernels want them.

    Raises UnsupportedOp where K is no multiple of 8, or half of N is none where parts take turns.
    """
    n, k = sum(part.shape[0] for part in parts), parts[0].shape[1]
    if k % 8:
        raise UnsupportedOp("linear", (n, k), "16 bit")
    paired = len(parts) == 2 and parts[0].shape == parts[1].shape
    if paired and n % (2 * PAIR_ROWS):
        raise UnsupportedOp("gate_up", (n, k), "16 bit")
    with upload.stream:
        weight = _stacked(parts, n, k, paired, bf16, upload)
    stacked = stack_bias(parts, bias)
    if paired and stacked is not None:
        stacked = stacked.reshape(2, -1, PAIR_ROWS).transpose(1, 0, 2).reshape(-1)
    return CudaLinear(
        weight=weight,
        bias=None if stacked is None else cp.asarray(stacked),
        narrow_bias=None if stacked is None else cp.asarray(narrowed(stacked, bf16)),
        bf16=bf16,
        note=f"{'bf16' if bf16 else 'f16'} from {' + '.join(sorted({kind_of(part) for part in parts}))}",
    )


def _stacked(parts: Sequence[Weight], n: int, k: int, paired: bool, bf16: bool, upload: Upload) -> Any:
    """The (N, K) matrix; it is there once the upload's stream has come so far."""
    weight = cp.empty((n, k), cp.uint16)
    for index, (part, first) in enumerate(zip(parts, offsets(parts), strict=True)):
        target = weight.reshape(-1, 2, PAIR_ROWS, k)[:, index] if paired else weight[first:]
        for rows, slab in slabs(part):
            bits = to_bits(slab, bf16)
            if not paired:
                upload.put(target[rows], bits)
                continue
            apart = cp.empty(bits.shape, cp.uint16)
            upload.put(apart, bits)
            among = slice(rows.start // PAIR_ROWS, rows.stop // PAIR_ROWS)
            target[among] = apart.reshape(-1, PAIR_ROWS, k)
    return weight


def widened(part: Weight) -> Dense:
    """A part in 16 bits, whatever it was stored in."""
    return part if isinstance(part, Dense) else Dense(part.dequantise().astype(np.float16))


def kind_of(part: Weight) -> str:
    """How a part is stored, for notes."""
    return part.dtype if isinstance(part, Dense) else type(part).__name__


def to_bits(slab: Weight, bf16: bool) -> Bits:
    """A part in the model's 16-bit type; no arithmetic where it is stored so."""
    if isinstance(slab, Dense) and slab.dtype == ("bfloat16" if bf16 else "float16"):
        return np.ascontiguousarray(slab.data).view(np.uint16)
    return narrowed(slab.dequantise(), bf16)


def narrowed(values: NDArray[np.float32], bf16: bool) -> Bits:
    """float32 → bit patterns, to nearest even; float16 saturates."""
    if bf16:
        return f32_to_bf16(values)
    limit = np.float32(np.finfo(np.float16).max)
    return np.clip(values, -limit, limit).astype(np.float16).view(np.uint16)


def offsets(parts: Sequence[Weight]) -> list[int]:
    """First row of each part in the stack."""
    return [sum(part.shape[0] for part in parts[:index]) for index in range(len(parts))]


def slabs(part: Weight) -> Iterator[tuple[slice, Weight]]:
    """The part in runs of rows, each a multiple of PAIR_ROWS but for the last."""
    rows, columns = part.shape
    height = max(1, SLAB_VALUES // columns // PAIR_ROWS) * PAIR_ROWS
    for first in range(0, rows, height):
        run = slice(first, min(first + height, rows))
        yield run, part.rows(run)


def stack_bias(parts: Sequence[Weight], bias: Sequence[Dense | None]) -> NDArray[np.float32] | None:
    """One bias over all parts, zeros for those without one; None if none has one."""
    if all(own is None for own in bias):
        return None
    pieces = [
        np.zeros(part.shape[0], np.float32) if own is None else own.dequantise()
        for part, own in zip(parts, bias, strict=True)
    ]
    return np.concatenate(pieces)
