# mypy: allow-untyped-defs
"""Linear layers: norm → product → store, add or gate, in one parallel loop for any weights and rows.

Threads share out *units* of two tiles (a gate tile and its up tile, or two neighbours), so a thread
streams a contiguous run of the weights. Few rows take matrix-vector products, many take panels.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from llmrs_cli.kernels.simd.compiling import inner, parallel_entry
from llmrs_cli.kernels.simd.dot import ZERO, dot_1, dot_2, dot_4, dot_8
from llmrs_cli.kernels.simd.elementwise import copy_row, gate_columns, group_sums, norm_row
from llmrs_cli.kernels.simd.gemm import BLOCK, PANEL, multiply_panel, widen
from llmrs_cli.kernels.simd.lanes import LANES, load, load_first, store_first
from llmrs_cli.kernels.simd.layout import EIGHT, FOUR
from llmrs_cli.kernels.simd.tiles import add_rows, store_rows

STORE, ADD, GATE = range(3)
"""What happens to a product: written, added to the residual, or gate and up combined to SiLU·mul."""
DOT_ROWS = 8
"""Rows of the largest matrix-vector tile."""
PANEL_FROM = 12
"""Rows from which panels win (measured)."""
PAD_ROWS = 12
"""Staged rows are padded up to a multiple of this and of DOT_ROWS."""


@inner
def stage(x, norm, eps, group, groups, staged, sums):
    """Copy rows of x, normed if there are norm weights, to `staged`, zero-padded; sum its groups."""
    rows, columns = x.shape
    width = group * groups
    for row in range(staged.shape[0]):
        base = row * width
        if row < rows:
            if norm.size:
                norm_row(x, row * columns, columns, norm, eps, staged, base)
            else:
                copy_row(x, row * columns, columns, staged, base)
            staged[row, columns:] = ZERO
        else:
            staged[row, :] = ZERO
        group_sums(staged, base, group, groups, sums, row * groups)


@inner
def finish(acc, mode, out, base, width, used, columns):
    if mode == ADD:
        acc = add_rows(acc, out, base, width, used, columns)
    store_rows(acc, out, base, width, used, columns)


@inner
def dot_tile(stream, layout, bias, tile, place, x, sums, rows, mode, out, width):
    """One tile's outputs for all rows, by matrix-vector products."""
    form, wide, zeros, group, groups, tile_bytes = layout
    at = tile * tile_bytes
    first, count = place
    bias_at = tile * LANES
    row = 0
    while row < rows:
        left = rows - row
        base, to = row * group * groups, row * width + first
        if left == 1:
            acc = dot_1(stream, at, form, wide, zeros, group, groups, bias, bias_at, x, base, sums)
            finish(acc, mode, out, to, width, left, count)
        elif left == 2:
            pair = dot_2(stream, at, form, wide, zeros, group, groups, bias, bias_at, x, base, sums)
            finish(pair, mode, out, to, width, left, count)
        elif left <= 4:
            four = dot_4(stream, at, form, wide, zeros, group, groups, bias, bias_at, x, base, sums)
            finish(four, mode, out, to, width, left, count)
        else:
            eight = dot_8(stream, at, form, wide, zeros, group, groups, bias, bias_at, x, base, sums)
            finish(eight, mode, out, to, width, min(left, DOT_ROWS), count)
        row += DOT_ROWS


@inner
def panel_unit(stream, layout, bias, tiles, unit, x, rows, mode, out, width, panel):
    """The outputs of two tiles for all rows, by panels over blocks of K."""
    form, wide, zeros, group, groups, tile_bytes = layout
    stride = group * groups
    left, right = unit
    for tile in unit:
        first, count = tiles[tile, 0], tiles[tile, 1]
        value = load(bias, tile * LANES)
        for row in range(rows):
            at = row * width + first
            start = load_first(out, at, count) + value if mode == ADD else value
            store_first(out, at, start, count)
    # A dense matrix has one group: its columns are cut instead.
    dense = form not in (FOUR, EIGHT)
    step = group if not dense else 1
    parts = groups if not dense else group
    size = max(1, BLOCK // step)
    for begin in range(0, parts, size):
        end = min(begin + size, parts)
        widen(panel, 0, stream, left * tile_bytes, form, wide, zeros, group, begin, end)
        widen(panel, LANES, stream, right * tile_bytes, form, wide, zeros, group, begin, end)
        multiply_panel(
            panel,
            (end - begin) * step,
            x,
            begin * step,
            stride,
            rows,
            out,
            width,
            (tiles[left, 0], tiles[left, 1]),
            (tiles[right, 0], tiles[right, 1] if right != left else 0),
        )


@parallel_entry
def linear(x, norm, eps, stream, tiles, bias, layout, mode, out, threads):
    """out = (or, with ADD, +=) norm(x) · Wᵀ + bias; with GATE silu of the first half times the second.

    x: (M, K) f32; norm: (K,) f32 or empty; stream: bytes of the tiles; tiles: (tiles, 2) first output and
    count; bias: (tiles · 16,) f32; layout: (form, wide, zeros, group, groups, bytes of a tile);
    out: (M, N) f32, with GATE (M, N/2), of which the tiles then are two halves.
    """
    form, _, _, group, groups, _ = layout
    rows = x.shape[0]
    padded = (rows + 2 * PAD_ROWS - 1) // (2 * PAD_ROWS) * (2 * PAD_ROWS)
    staged = np.empty((padded, group * groups), np.float32)
    sums = np.empty(padded * groups, np.float32)
    stage(x, norm, eps, group, groups, staged, sums)
    count = tiles.shape[0]
    gated = mode == GATE
    width = out.shape[1] * 2 if gated else out.shape[1]
    product = np.empty((rows, width), np.float32) if gated else out
    units = count // 2 if gated else (count + 1) // 2
    for thread in prange(threads):
        panel = np.empty(BLOCK * PANEL if rows >= PANEL_FROM else 0, np.float32)
        for unit in range(units * thread // threads, units * (thread + 1) // threads):
            left = unit if gated else 2 * unit
            right = unit + units if gated else min(2 * unit + 1, count - 1)
            if rows >= PANEL_FROM:
                panel_unit(
                    stream, layout, bias, tiles, (left, right), staged, rows, mode, product, width, panel
                )
            else:
                place = (tiles[left, 0], tiles[left, 1])
                dot_tile(stream, layout, bias, left, place, staged, sums, rows, mode, product, width)
                if right != left:
                    place = (tiles[right, 0], tiles[right, 1])
                    dot_tile(stream, layout, bias, right, place, staged, sums, rows, mode, product, width)
            if gated:
                gate_columns(product, out, rows, width // 2, tiles[left, 0], tiles[left, 1])
