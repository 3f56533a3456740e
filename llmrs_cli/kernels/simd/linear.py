# mypy: allow-untyped-defs
"""Linear layers: norm → product → store, add or gate, in one parallel loop for any weights and rows.

Threads share out *units* of two tiles (a gate tile and its up tile, or two neighbours), so a thread
streams a contiguous run of the weights. Few rows take matrix-vector products, many take panels.
"""

from __future__ import annotations

import numpy as np
from numba.core import types

from llmrs_cli.kernels.simd.atomics import hold, package
from llmrs_cli.kernels.simd.compiling import entry, inner
from llmrs_cli.kernels.simd.crew import share_out
from llmrs_cli.kernels.simd.dot import ZERO, dot_1, dot_4, dot_8
from llmrs_cli.kernels.simd.elementwise import copy_row, gate_columns, group_sums, norm_row
from llmrs_cli.kernels.simd.gemm import BLOCK, PANEL, multiply_panel, widen
from llmrs_cli.kernels.simd.kinds import BYTES, ORDER, ROWS, TABLE, VALUES
from llmrs_cli.kernels.simd.lanes import LANES
from llmrs_cli.kernels.simd.layout import EIGHT, FOUR
from llmrs_cli.kernels.simd.memory import load, load_first, store_first
from llmrs_cli.kernels.simd.target import GEMM_ROWS
from llmrs_cli.kernels.simd.tiles import add_rows, store_rows

STORE, ADD, GATE = range(3)
"""What happens to a product: written, added to the residual, or gate and up combined to SiLU·mul."""
FEW_ROWS, DOT_ROWS = 4, 8
"""Rows of the matrix-vector tiles for more than one row."""
PANEL_FROM = 17
"""Rows from which widening the weights pays (measured: 16 rows take 6 ms this way, 7 ms by panels)."""


@inner
def stage(x, first, norm, eps, staged):
    """Copy rows of x from `first` on, normed if there are norm weights, to `staged`, zero-padded."""
    rows, columns = x.shape
    width = staged.shape[1]
    for row in range(staged.shape[0]):
        base, source = row * width, first + row
        if source >= rows:
            staged[row, :] = ZERO
            continue
        if norm.size:
            norm_row(x, source * columns, columns, norm, eps, staged, base)
        else:
            copy_row(x, source * columns, columns, staged, base)
        staged[row, columns:] = ZERO


@inner
def finish(acc, mode, out, base, width, used, columns):
    """Store sums; with mode ADD what stands there is added first."""
    if mode == ADD:
        acc = add_rows(acc, out, base, width, used, columns)
    store_rows(acc, out, base, width, used, columns)


@inner
def dot_rows(rows):
    """How many rows `dot_tile` reads."""
    last = rows % DOT_ROWS
    if last == 1:
        return rows
    return rows - last + (FEW_ROWS if 0 < last <= FEW_ROWS else (last > 0) * DOT_ROWS)


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
        elif left <= FEW_ROWS:
            four = dot_4(stream, at, form, wide, zeros, group, groups, bias, bias_at, x, base, sums)
            finish(four, mode, out, to, width, left, count)
        else:
            eight = dot_8(stream, at, form, wide, zeros, group, groups, bias, bias_at, x, base, sums)
            finish(eight, mode, out, to, width, min(left, DOT_ROWS), count)
        row += DOT_ROWS


@inner
def start_columns(bias, tiles, tile, rows, mode, out, width):
    """Let a tile's outputs begin with the bias, or add the bias to them."""
    first, count = tiles[tile, 0], tiles[tile, 1]
    value = load(bias, tile * LANES)
    for row in range(rows):
        at = row * width + first
        start = load_first(out, at, count) + value if mode == ADD else value
        store_first(out, at, start, count)


@inner
def panel_unit(stream, layout, bias, tiles, left, right, x, tail, rows, mode, out, width, panel):
    """The outputs of two tiles for all rows, by panels over blocks of K.

    x: whole tiles of rows, as wide as the stream's columns; tail: the rows that are left, zero-padded.
    """
    form, wide, zeros, group, groups, tile_bytes = layout
    start_columns(bias, tiles, left, rows, mode, out, width)
    if right != left:
        start_columns(bias, tiles, right, rows, mode, out, width)
    # A dense matrix has one group: its columns are cut instead.
    packed = form in (FOUR, EIGHT)
    step, parts = (group, groups) if packed else (1, group)
    size = max(1, BLOCK // step)
    a = tiles[left, 0], tiles[left, 1]
    b = tiles[right, 0], tiles[right, 1] if right != left else 0
    whole = rows - rows % GEMM_ROWS
    for begin in range(0, parts, size):
        end = min(begin + size, parts)
        widen(panel, 0, stream, left * tile_bytes, form, wide, zeros, group, begin, end)
        widen(panel, LANES, stream, right * tile_bytes, form, wide, zeros, group, begin, end)
        depth, base = (end - begin) * step, begin * step
        multiply_panel(panel, depth, x, base, group * groups, 0, whole, out, width, a, b)
        multiply_panel(panel, depth, tail, base, group * groups, whole, rows - whole, out, width, a, b)


pack_panels, unpack_panels = package(
    types.int64, BYTES, ORDER, VALUES, TABLE, ROWS, ROWS, types.int64, types.int64, ROWS, ROWS
)


def by_panels(part, parts, arguments):
    """A part of the units, for many rows."""
    units, stream, order, bias, tiles, x, tail, rows, mode, product, out = unpack_panels(arguments)
    form, group, width = order[0], order[3], product.shape[1]
    panel = np.empty((max(BLOCK, group) if form in (FOUR, EIGHT) else BLOCK) * PANEL, np.float32)
    for unit in range(units * part // parts, units * (part + 1) // parts):
        left = unit if mode == GATE else 2 * unit
        right = unit + units if mode == GATE else min(2 * unit + 1, tiles.shape[0] - 1)
        panel_unit(stream, order, bias, tiles, left, right, x, tail, rows, mode, product, width, panel)
        if mode == GATE:
            gate_columns(product, out, rows, width // 2, tiles[left, 0], tiles[left, 1])


pack_dots, unpack_dots = package(
    types.int64, BYTES, ORDER, VALUES, TABLE, ROWS, VALUES, types.int64, types.int64, ROWS, ROWS
)


def by_dots(part, parts, arguments):
    """A part of the units, for few rows."""
    units, stream, order, bias, tiles, x, sums, rows, mode, product, out = unpack_dots(arguments)
    width = product.shape[1]
    for unit in range(units * part // parts, units * (part + 1) // parts):
        left = unit if mode == GATE else 2 * unit
        right = unit + units if mode == GATE else min(2 * unit + 1, tiles.shape[0] - 1)
        for tile in range(left, right + 1, max(1, right - left)):
            place = tiles[tile, 0], tiles[tile, 1]
            dot_tile(stream, order, bias, tile, place, x, sums, rows, mode, product, width)
        if mode == GATE:
            gate_columns(product, out, rows, width // 2, tiles[left, 0], tiles[left, 1])


@entry
def linear(dots, panels, board, x, norm, eps, stream, tiles, bias, order, mode, out):
    """out = (or, with ADD, +=) norm(x) · Wᵀ + bias; with GATE silu of the first half times the second.

    x: (M, K) f32; norm: (K,) f32 or empty; stream: bytes of the tiles; tiles: (tiles, 2) first output and
    count; bias: (tiles · 16,) f32; order: (form, wide, zeros, group, groups, bytes of a tile);
    out: (M, N) f32, with GATE (M, N/2), of which the tiles then are two halves; dots, panels: addresses
    of `by_dots` and `by_panels`.
    """
    rows, columns = x.shape[0], order[3] * order[4]
    units = tiles.shape[0] // 2 if mode == GATE else (tiles.shape[0] + 1) // 2
    product = np.empty((rows, 2 * out.shape[1]), np.float32) if mode == GATE else out
    if rows < PANEL_FROM:
        staged = np.empty((dot_rows(rows), columns), np.float32)
        sums = np.empty(staged.size // order[3], np.float32)
        stage(x, 0, norm, eps, staged)
        group_sums(staged, order[3], sums)
        few = (units, stream, order, bias, tiles, staged, sums, rows, mode, product, out)
        share_out(board, dots, units, pack_dots(few))
        hold(few)
    else:
        whole = rows - rows % GEMM_ROWS
        tail = np.empty((GEMM_ROWS, columns), np.float32)
        stage(x, whole, norm, eps, tail)
        body = x
        if norm.size or x.shape[1] != columns:
            body = np.empty((whole, columns), np.float32)
            stage(x, 0, norm, eps, body)
        many = (units, stream, order, bias, tiles, body, tail, rows, mode, product, out)
        share_out(board, panels, units, pack_panels(many))
        hold(many)
