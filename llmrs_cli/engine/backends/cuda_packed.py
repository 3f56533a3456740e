"""4-bit weights that stay packed on the GPU: reordered while loading, multiplied by the kernels of `packed_plans`.

What cannot stay packed is named by `why_widened` and goes the way of `cuda_linear`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import cupy as cp
import numpy as np

from llmrs_cli.engine.arrays import Array
from llmrs_cli.engine.backends.cuda_dense import DenseProducts, room_ahead
from llmrs_cli.engine.backends.cuda_linear import (
    PAIR_ROWS,
    CudaLinear,
    is_paired,
    narrowed,
    offsets,
    places,
    stack_bias,
)
from llmrs_cli.engine.backends.cuda_memory import Arena
from llmrs_cli.engine.backends.cuda_part import Four, half_scales, on_device
from llmrs_cli.engine.backends.cuda_upload import Upload
from llmrs_cli.engine.backends.handles import Vector
from llmrs_cli.engine.weights.packed import Dense, Packed4, Stored, Tiles4
from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels import packed_large, packed_plans, packed_small, packed_wide
from llmrs_cli.kernels.dequantise import dequantise
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.gemm import Gemm
from llmrs_cli.kernels.linear_small import DEEP_SHARED, Epilogue
from llmrs_cli.kernels.marlin_layout import TILE_ROWS, UNIT_ROWS, Layout, tile_group
from llmrs_cli.kernels.norm_ahead import Ahead
from llmrs_cli.kernels.packed4 import Packed4Matrix
from llmrs_cli.kernels.packed_many import packed_many
from llmrs_cli.kernels.packed_many_plans import PackedManyPlan
from llmrs_cli.kernels.packed_wide_plans import PART_ROWS, PackedWidePlan
from llmrs_cli.kernels.repack import Part, compare, repack, stack
from llmrs_cli.kernels.rms_norm import rms_norm
from llmrs_cli.kernels.scratch import Scratch
from llmrs_cli.kernels.silu_mul import silu_mul

ARRIVAL_BYTES = 1 << 20
"""Room for a count for each tile of outputs."""


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A (N, K) matrix of 4-bit codes, with an optional bias."""

    matrix: Packed4Matrix
    bias: Any
    """(N,) float32, or None"""
    narrow_bias: Any
    """the same as 16-bit patterns"""
    bf16: bool
    """Type of the activations"""
    note: str
    copy: CudaLinear | None = None
    """The same in 16 bits, for many tokens, where there is memory for both"""

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape


# -- loading ------------------------------------------------------------------------------------------------


def why_widened(parts: Sequence[Stored]) -> str | None:
    """Why these parts cannot stay packed as one matrix, in a few words; None if they can."""
    packed = [part for part in parts if isinstance(part, Four)]
    if len(packed) < len(parts):
        return "not all of it 4-bit in its natural order"
    group, columns = packed[0].group, packed[0].shape[1]
    if any(isinstance(part, Packed4) and part.zeros is None for part in packed):
        return "offsets instead of zeros"
    if any(part.group != group for part in packed):
        return "groups of different sizes"
    if is_paired(packed) and packed[0].shape[0] % PAIR_ROWS:
        return f"pairs of {packed[0].shape[0]} rows"
    if columns % 8 or tile_group(group, columns) is None:
        return f"groups of {group} in {columns} columns"
    if any(half_scales(part) is None for part in packed):
        return "scales beyond float16"
    return None


def load_packed(
    device: CudaDevice, upload: Upload, parts: Sequence[Stored], bias: Sequence[Dense | None], bf16: bool
) -> PackedLinear:
    """Stack parts as `cuda_linear.load_linear` does, in tiles; they are reordered on the GPU where they must be.

    `why_widened` has found nothing against it. Raises EngineFault if a value of the result is not the source's.
    """
    packed = [part for part in parts if isinstance(part, Four)]
    group, columns = packed[0].group, packed[0].shape[1]
    own = tile_group(group, columns)
    assert own is not None
    layout = Layout(sum(part.shape[0] for part in packed), columns, own)
    shape = layout.unit_rows, layout.unit_columns, layout.unit_bytes // 4
    with upload.stream:
        matrix = Packed4Matrix(cp.empty(shape, cp.uint32), layout)
        if (tiles := _whole_units(packed)) is not None:
            for part, first in zip(tiles, offsets(packed), strict=True):
                units = part.tiles.view(np.uint32)
                start = first // UNIT_ROWS
                upload.put(matrix.units[start : start + len(units)], units)
        else:
            _reorder(device, upload, packed, bf16, matrix)
    stacked = stack_bias(packed, bias)
    return PackedLinear(
        matrix=matrix,
        bias=None if stacked is None else cp.asarray(stacked),
        narrow_bias=None if stacked is None else cp.asarray(narrowed(stacked, bf16)),
        bf16=bf16,
        note=f"4 bit, groups of {group}, for {'bf16' if bf16 else 'f16'}",
    )


def _whole_units(parts: Sequence[Four]) -> list[Tiles4] | None:
    """The parts, if their tiles one after the other are those of the stack."""
    tiles = [part for part in parts if isinstance(part, Tiles4)]
    whole = all(part.shape[0] % UNIT_ROWS == 0 for part in tiles[:-1])
    return tiles if len(tiles) == len(parts) and whole and not is_paired(parts) else None


def _reorder(
    device: CudaDevice, upload: Upload, parts: Sequence[Four], bf16: bool, matrix: Packed4Matrix
) -> None:
    """Fill `matrix`: parts go up as they are, into a stack in canonical order, and that into tiles."""
    (rows, columns), group = matrix.shape, parts[0].group
    groups = -(-columns // group)
    stacked = (
        cp.empty((rows, columns // 8), cp.uint32),
        cp.empty((rows, groups), cp.uint16),
        cp.empty((rows, groups), cp.uint16),
    )
    sources = []
    for part, (first, turns) in zip(parts, places(parts), strict=True):
        source = on_device(part, upload, first, turns)
        assert source is not None, "why_widened says that it can be read"
        stack(device, bf16, source, *stacked)
        sources.append(source)
    repack(device, bf16, *stacked, group, matrix)
    upload.stream.synchronize()  # kernels read weights without waiting for the kernel before
    _prove(device, bf16, sources, matrix)


def _prove(device: CudaDevice, bf16: bool, sources: Sequence[Part], matrix: Packed4Matrix) -> None:
    """Every value that a kernel will read out of the tiles is that of the file."""
    wrong = cp.zeros(1, cp.int32)
    for rows in slabs(*matrix.shape, packed_plans.SLAB_BYTES):
        values = cp.empty((rows.stop - rows.start, matrix.shape[1]), cp.uint16)
        dequantise(device, bf16, matrix, values, first=rows.start)
        for source in sources:
            compare(device, bf16, source, values, wrong, top=rows.start)
    count = int(cp.asnumpy(wrong)[0])
    if count:
        raise EngineFault(
            f"{count} of the 4-bit weights of a {matrix.shape} matrix changed while they were reordered.",
            hint="The GPU or its memory may be faulty. Try again, or use --device cpu.",
        )


def workspace_bytes(multiprocessors: int) -> int:
    """What products with packed weights take beside their operands: a slab, and parts of shared sums."""
    largest = max(tokens * warps for tokens, warps in packed_plans.WARPS.items()) * TILE_ROWS
    return packed_plans.SLAB_BYTES + 2 * multiprocessors * largest * 4 + ARRIVAL_BYTES


def slabs(rows: int, columns: int, limit: int) -> Iterator[slice]:
    """Runs of whole units of rows whose 16-bit values take at most `limit` bytes (or one unit)."""
    height = max(limit // (2 * columns) // UNIT_ROWS, 1) * UNIT_ROWS
    for first in range(0, rows, height):
        yield slice(first, min(first + height, rows))


# -- products -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PackedProducts:
    """Products with packed weights: which kernel serves how many tokens. Its buffers are the arena's."""

    device: CudaDevice
    arena: Arena
    gemm: Gemm
    dense: DenseProducts | None = None
    """For weights with a copy"""
    slab_bytes: int = field(default_factory=lambda: packed_plans.SLAB_BYTES)

    def normed(
        self,
        epilogue: Epilogue,
        x: Array,
        norm: Vector,
        eps: float,
        weight: PackedLinear,
        out: Array,
        ahead: Ahead | None = None,
    ) -> None:
        """out = epilogue(linear(rms_norm(x))): x (M, K) float32, `ahead` as it was left for this norm."""
        m, k = len(out), x.shape[1]
        plan = self._wide_plan(m, weight)
        if plan is not None and ahead is not None:
            packed_wide.packed_wide(
                self.device, weight.bf16, plan, epilogue, weight.matrix, out, x=ahead.values, bias=weight.bias,
                ahead=ahead, eps=eps,
            )  # fmt: skip
            return
        if plan is None and m <= packed_small.MAX_TOKENS and self._norm_fits(weight, m):
            self._few(epilogue, weight, out, residual=x, norm=norm, eps=eps)
            return
        values = self.arena.take("normed", (m, k), cp.uint16)
        rms_norm(self.device, weight.bf16, x, norm, eps, values)
        self.plain(epilogue, values, weight, out)

    def plain(
        self,
        epilogue: Epilogue,
        x: Array,
        weight: PackedLinear,
        out: Array,
        alpha: float = 1.0,
        norm: Vector | None = None,
    ) -> Ahead | None:
        """out = epilogue(alpha · x · Wᵀ + bias): x (M, K) 16-bit; after "add", `out` as it is left for `norm`, if it is."""
        if weight.copy is not None and len(x) > packed_plans.COPY_TOKENS:
            assert self.dense is not None
            self.dense.plain(epilogue, x, weight.copy, out, alpha)
        elif (plan := self._wide_plan(len(x), weight)) is not None:
            parts = weight.shape[0] // PART_ROWS
            leaves = (
                None if norm is None or epilogue != "add" else room_ahead(self.arena, norm, len(x), parts)
            )
            packed_wide.packed_wide(
                self.device, weight.bf16, plan, epilogue, weight.matrix, out, x=x, bias=weight.bias, alpha=alpha,
                leaves=leaves,
            )  # fmt: skip
            return leaves
        elif len(x) <= packed_small.MAX_TOKENS:
            self._few(epilogue, weight, out, x=x, alpha=alpha)
        elif epilogue != "logits" and (many := self._many_plan(len(x), weight, epilogue)) is not None:
            packed_many(
                self.device, weight.bf16, many, epilogue, weight.matrix, x, out, bias=weight.bias, alpha=alpha
            )
        elif len(x) <= packed_plans.TILE_TOKENS[self._hopper]:
            self._more(epilogue, weight, x, out, alpha)
        elif epilogue == "silu":
            gate_up = self.arena.take("gate_up", (len(x), weight.shape[0]), cp.uint16)
            self.by_slabs("store", weight, x, gate_up, alpha)
            silu_mul(self.device, weight.bf16, gate_up, out)
        else:
            self.by_slabs(epilogue, weight, x, out, alpha)
        return None

    @property
    def _hopper(self) -> bool:
        return self.device.loader.arch == packed_plans.HOPPER

    @property
    def _deep(self) -> bool:
        return self.device.shared_limit >= DEEP_SHARED

    def _stream_plan(self, weight: PackedLinear) -> packed_small.StreamPlan:
        count, layout = self.device.multiprocessors, weight.matrix.layout
        return packed_plans.stream_plan(count, layout, self._deep, self._hopper)

    def _wide_plan(self, m: int, weight: PackedLinear) -> PackedWidePlan | None:
        count, layout = self.device.multiprocessors, weight.matrix.layout
        return packed_plans.wide_plan(count, m, layout, self._hopper)

    def _many_plan(self, m: int, weight: PackedLinear, epilogue: Epilogue) -> PackedManyPlan | None:
        count, layout = self.device.multiprocessors, weight.matrix.layout
        return packed_plans.many_plan(count, m, layout, epilogue, self._hopper)

    def _norm_fits(self, weight: PackedLinear, m: int) -> bool:
        needed = self._stream_plan(weight).shared_bytes(weight.matrix.layout, m, normed=True)
        return needed <= self.device.shared_limit

    def _few(self, epilogue: Epilogue, weight: PackedLinear, out: Array, **source: Any) -> None:
        plan = self._stream_plan(weight)
        packed_small.packed_small(
            self.device, weight.bf16, plan, epilogue, weight.matrix, out, bias=weight.bias, **source
        )

    def _more(self, epilogue: Epilogue, weight: PackedLinear, x: Array, out: Array, alpha: float) -> None:
        m, layout = len(x), weight.matrix.layout
        plan = packed_plans.tile_plan(self.device.multiprocessors, m, layout.group, self._deep, self._hopper)
        partials, arrivals = packed_large.scratch_sizes(plan, layout, m)
        scratch = Scratch(
            self.arena.take("packed partials", (max(partials, 1),), cp.float32),
            self.arena.take("packed arrivals", (max(arrivals, 1),), cp.int32),
        )
        packed_large.packed_large(
            self.device, weight.bf16, plan, epilogue, weight.matrix, out, scratch,
            x=x, bias=weight.bias, alpha=alpha,
        )  # fmt: skip

    def by_slabs(self, epilogue: Epilogue, weight: PackedLinear, x: Array, out: Array, alpha: float) -> None:
        """The same for any number of tokens and any epilogue but silu: a slab of W in 16 bits after the other."""
        bias = weight.narrow_bias if epilogue == "store" else weight.bias
        for rows in slabs(*weight.shape, self.slab_bytes):
            shape = rows.stop - rows.start, weight.shape[1]
            slab = self.arena.take("slab", (shape[0] * shape[1],), cp.uint16).reshape(shape)
            dequantise(self.device, weight.bf16, weight.matrix, slab, first=rows.start)
            own = None if bias is None else bias[rows]
            self.gemm(weight.bf16, x, slab, out[:, rows], own, accumulate=epilogue == "add", alpha=alpha)
