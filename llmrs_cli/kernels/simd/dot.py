# mypy: allow-untyped-defs
"""Matrix-vector products of one tile: sixteen outputs for a few rows of activations.

Packed weights are read once and serve every row; activations are float32 and exact. A row's sum is
formed in the same order whatever the number of rows, so a row alone and in company agree bit for bit.

4 bit: a code q enters the product as v = 1 + q/16 (`lanes.nibble`), and a group with scale s adds
    s·Σ q·x + m·Σ x  =  16·s·Σ v·x + (m - 16·s)·Σ x        (m = -z·s for zeros)
so the sums of x over each group come with the activations (`stage`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llmrs_cli.kernels.simd.compiling import inner
from llmrs_cli.kernels.simd.lanes import fused, nibble, splat
from llmrs_cli.kernels.simd.layout import BRAIN, EIGHT, FOUR, LANES, SINGLE, WORD
from llmrs_cli.kernels.simd.memory import load, load_bf16, load_f16, load_f32, load_int8, load_words, prefetch
from llmrs_cli.kernels.simd.tiles import add_tile, fma_rows, fma_tile, spread

AHEAD = 4096
"""Bytes between what is used and what is asked of the memory: a third of the time on the machine measured."""
ZERO, SIXTEEN = np.float32(0), np.float32(16)


@inner
def group_scale(stream, at, wide):
    """The sixteen scales at the start of a group."""
    if wide:
        return load_f32(stream, at)
    return load_f16(stream, at)


@inner
def group_second(stream, at, wide):
    """The sixteen zeros or offsets of a 4-bit group."""
    if wide:
        return load_f32(stream, at + LANES * 4)
    return load_f16(stream, at + LANES * 2)


@inner
def group_shift(stream, at, wide, zeros, scale):
    """m - 16·s of a 4-bit group: what multiplies Σ x."""
    second = group_second(stream, at, wide)
    if zeros:
        return (splat(-SIXTEEN) - second) * scale
    return fused(scale, splat(-SIXTEEN), second)


def make_dot(rows: int) -> Any:
    """Compile the product for a fixed number of rows: see `dot` below for its arguments."""

    @inner
    def dot_four(acc, stream, at, wide, zeros, x, base, stride, sums, group, groups):
        for g in range(groups):
            scale = group_scale(stream, at, wide)
            shift = group_shift(stream, at, wide, zeros, scale)
            at += LANES * 8 if wide else LANES * 4
            even = spread(splat(ZERO), rows)
            odd = spread(splat(ZERO), rows)
            k = base + g * group
            for _ in range(group // WORD):
                prefetch(stream, at + AHEAD)
                word = load_words(stream, at)
                even = fma_rows(even, nibble(word, 0), x, k, stride)
                odd = fma_rows(odd, nibble(word, 1), x, k + 1, stride)
                even = fma_rows(even, nibble(word, 2), x, k + 2, stride)
                odd = fma_rows(odd, nibble(word, 3), x, k + 3, stride)
                even = fma_rows(even, nibble(word, 4), x, k + 4, stride)
                odd = fma_rows(odd, nibble(word, 5), x, k + 5, stride)
                even = fma_rows(even, nibble(word, 6), x, k + 6, stride)
                odd = fma_rows(odd, nibble(word, 7), x, k + 7, stride)
                at += LANES * 4
                k += WORD
            acc = fma_tile(acc, splat(SIXTEEN) * scale, add_tile(even, odd))
            acc = fma_rows(acc, shift, sums, base // group + g, groups)
        return acc

    @inner
    def dot_eight(acc, stream, at, wide, x, base, stride, group, groups):
        for g in range(groups):
            scale = group_scale(stream, at, wide)
            at += LANES * 4 if wide else LANES * 2
            even = spread(splat(ZERO), rows)
            odd = spread(splat(ZERO), rows)
            k = base + g * group
            for _ in range(group // 4):
                prefetch(stream, at + AHEAD)
                even = fma_rows(even, load_int8(stream, at), x, k, stride)
                odd = fma_rows(odd, load_int8(stream, at + LANES), x, k + 1, stride)
                even = fma_rows(even, load_int8(stream, at + 2 * LANES), x, k + 2, stride)
                odd = fma_rows(odd, load_int8(stream, at + 3 * LANES), x, k + 3, stride)
                at += LANES * 4
                k += 4
            for _ in range(group % 4):
                even = fma_rows(even, load_int8(stream, at), x, k, stride)
                at += LANES
                k += 1
            acc = fma_tile(acc, scale, add_tile(even, odd))
        return acc

    def make_dense(fetch: Any, size: int) -> Any:
        step = LANES * size

        @inner
        def dot_dense(acc, stream, at, x, base, stride, columns):
            odd = spread(splat(ZERO), rows)
            for k in range(base, base + columns, 2):
                prefetch(stream, at + AHEAD)
                acc = fma_rows(acc, fetch(stream, at), x, k, stride)
                odd = fma_rows(odd, fetch(stream, at + step), x, k + 1, stride)
                at += 2 * step
            return add_tile(acc, odd)

        return dot_dense

    dot_single, dot_half, dot_brain = (
        make_dense(fetch, size) for fetch, size in ((load_f32, 4), (load_f16, 2), (load_bf16, 2))
    )

    @inner
    def dot(stream, at, form, wide, zeros, group, groups, bias, first, x, base, sums):
        """bias[first …] + tile at byte `at` · x, for the rows of x from flat index `base` on."""
        acc = spread(load(bias, first), rows)
        stride = group * groups
        if form == FOUR:
            return dot_four(acc, stream, at, wide, zeros, x, base, stride, sums, group, groups)
        if form == EIGHT:
            return dot_eight(acc, stream, at, wide, x, base, stride, group, groups)
        if form == SINGLE:
            return dot_single(acc, stream, at, x, base, stride, stride)
        if form == BRAIN:
            return dot_brain(acc, stream, at, x, base, stride, stride)
        return dot_half(acc, stream, at, x, base, stride, stride)

    return dot


dot_1, dot_4, dot_8 = (make_dot(rows) for rows in (1, 4, 8))
