"""Weights on the GPU: 16-bit matrices with an optional bias. Packed forms are widened while loading, 4-bit ones there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cupy as cp
import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.backends.base import UnsupportedOp
from llmrs_cli.engine.backends.cuda_part import on_device
from llmrs_cli.engine.backends.cuda_upload import Upload
from llmrs_cli.engine.weights.packed import Dense, Packed8, Permuted4, Stored, canonical, f32_to_bf16
from llmrs_cli.kernels.launch import Device
from llmrs_cli.kernels.repack import widen

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
    device: Device, upload: Upload, parts: Sequence[Stored], bias: Sequence[Dense | None], bf16: bool
) -> CudaLinear:
    """Stack parts along N on the GPU; two equal parts (gate and up) in turns of 8 rows, as the kernels want them.

    Raises UnsupportedOp where K is no multiple of 8, or half of N is none where parts take turns.
    """
    n, k = sum(part.shape[0] for part in parts), parts[0].shape[1]
    if k % 8:
        raise UnsupportedOp("linear", (n, k), "16 bit")
    if is_paired(parts) and n % (2 * PAIR_ROWS):
        raise UnsupportedOp("gate_up", (n, k), "16 bit")
    with upload.stream:
        weight = cp.empty((n, k), cp.uint16)
        for part, (first, turns) in zip(parts, places(parts), strict=True):
            own = _rows_of(part, weight, first, turns)
            packed = on_device(part.weight if isinstance(part, Permuted4) else part, upload, first, turns)
            if packed is None:
                _put(part, own, bf16, upload)
                continue
            widen(device, bf16, packed, weight)
            if isinstance(part, Permuted4):
                own[...] = own[..., cp.asarray(np.argsort(part.inputs))]
    stacked = stack_bias(parts, bias)
    return CudaLinear(
        weight=weight,
        bias=None if stacked is None else cp.asarray(stacked),
        narrow_bias=None if stacked is None else cp.asarray(narrowed(stacked, bf16)),
        bf16=bf16,
        note=f"{'bf16' if bf16 else 'f16'} from {' + '.join(sorted({kind_of(part) for part in parts}))}",
    )


def is_paired(parts: Sequence[Stored]) -> bool:
    """Whether parts take turns of 8 rows: gate and up."""
    return len(parts) == 2 and parts[0].shape == parts[1].shape


def places(parts: Sequence[Stored]) -> list[tuple[int, int]]:
    """For each part the row of the stack where it begins, and how many parts take turns."""
    if is_paired(parts):
        return [(PAIR_ROWS * index, 2) for index in range(2)]
    return [(first, 1) for first in offsets(parts)]


def _rows_of(part: Stored, weight: Any, first: int, turns: int) -> Any:
    """A view of the rows that a part has: (N, K), or (N/8, 8, K) where parts take turns."""
    n, k = part.shape
    return (
        weight[first : first + n]
        if turns == 1
        else weight.reshape(-1, turns, PAIR_ROWS, k)[:, first // PAIR_ROWS]
    )


def _put(part: Stored, own: Any, bf16: bool, upload: Upload) -> None:
    """Write a part into its rows, a slab at a time; the values are there once the stream has come so far."""
    for rows, slab in slabs(canonical(part)):
        bits = to_bits(slab, bf16)
        if own.ndim == 2:
            upload.put(own[rows], bits)
            continue
        apart = cp.empty(bits.shape, cp.uint16)
        upload.put(apart, bits)
        among = slice(rows.start // PAIR_ROWS, rows.stop // PAIR_ROWS)
        own[among] = apart.reshape(-1, *own.shape[1:])


def kind_of(part: Stored) -> str:
    """How a part is stored, for notes."""
    if isinstance(part, Dense):
        return part.dtype
    return "8 bit" if isinstance(part, Packed8) else "4 bit"


def to_bits(slab: Stored, bf16: bool) -> Bits:
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


def offsets(parts: Sequence[Stored]) -> list[int]:
    """First row of each part in the stack."""
    return [sum(part.shape[0] for part in parts[:index]) for index in range(len(parts))]


def slabs(part: Stored) -> Iterator[tuple[slice, Stored]]:
    """The part in runs of rows, each a multiple of PAIR_ROWS but for the last."""
    rows, columns = part.shape
    height = max(1, SLAB_VALUES // columns // PAIR_ROWS) * PAIR_ROWS
    for first in range(0, rows, height):
        run = slice(first, min(first + height, rows))
        yield run, part.rows(run)


def stack_bias(parts: Sequence[Stored], bias: Sequence[Dense | None]) -> NDArray[np.float32] | None:
    """One bias over all parts in the order of their rows, zeros for those without one; None if none has one."""
    if all(own is None for own in bias):
        return None
    pieces = [
        np.zeros(part.shape[0], np.float32) if own is None else own.dequantise()
        for part, own in zip(parts, bias, strict=True)
    ]
    if is_paired(parts):
        return np.stack([own.reshape(-1, PAIR_ROWS) for own in pieces], axis=1).reshape(-1)
    return np.concatenate(pieces)
