# mypy: allow-untyped-defs
"""Matrix products of two tiles with many rows of activations.

The weights of thirty-two outputs are widened to float32 once, a block of K at a time (a *panel* that
stays in the level-2 cache), and every few rows of activations run over it: each step loads two vectors
of weights and broadcasts one value a row, the register blocking of Goto and van de Geijn (2008).
"""

from __future__ import annotations

from llmrs_cli.kernels.simd.compiling import inner
from llmrs_cli.kernels.simd.dot import SIXTEEN, ZERO, group_scale, group_second
from llmrs_cli.kernels.simd.lanes import fused, nibble, splat
from llmrs_cli.kernels.simd.layout import BRAIN, EIGHT, FOUR, LANES, SINGLE, WORD
from llmrs_cli.kernels.simd.memory import load, load_bf16, load_f16, load_f32, load_int8, load_words, store
from llmrs_cli.kernels.simd.target import GEMM_ROWS
from llmrs_cli.kernels.simd.tiles import add_rows, every_other, fma_pairs, spread, store_rows

PANEL = 2 * LANES
"""Outputs of one panel."""
PAIRS = 2 * GEMM_ROWS
BLOCK = 1024
"""Columns of one panel at most, where groups allow: 128 KiB."""


@inner
def code(word, position):
    """The 4-bit codes at `position` of sixteen words, as float32."""
    return fused(nibble(word, position), splat(SIXTEEN), splat(-SIXTEEN))


@inner
def widen_four(panel, side, stream, at, wide, zeros, group, first, last):
    """Fill side `side` of the panel with groups `first` to `last` - 1 of a tile of 4-bit codes."""
    words = group // WORD
    head = LANES * 8 if wide else LANES * 4
    at += first * (head + words * LANES * 4)
    out = side
    for _ in range(first, last):
        scale = group_scale(stream, at, wide)
        second = group_second(stream, at, wide)
        # (q - z) · s + 0 or (q - 0) · s + m, each operation rounded as in the canonical form.
        zero = second if zeros else splat(ZERO)
        shift = splat(ZERO) if zeros else second
        at += head
        for _ in range(words):
            word = load_words(stream, at)
            store(panel, out, (code(word, 0) - zero) * scale + shift)
            store(panel, out + PANEL, (code(word, 1) - zero) * scale + shift)
            store(panel, out + 2 * PANEL, (code(word, 2) - zero) * scale + shift)
            store(panel, out + 3 * PANEL, (code(word, 3) - zero) * scale + shift)
            store(panel, out + 4 * PANEL, (code(word, 4) - zero) * scale + shift)
            store(panel, out + 5 * PANEL, (code(word, 5) - zero) * scale + shift)
            store(panel, out + 6 * PANEL, (code(word, 6) - zero) * scale + shift)
            store(panel, out + 7 * PANEL, (code(word, 7) - zero) * scale + shift)
            at += LANES * 4
            out += WORD * PANEL


@inner
def widen_eight(panel, side, stream, at, wide, group, first, last):
    """Fill side `side` of the panel with groups `first` to `last` - 1 of a tile of bytes."""
    head = LANES * 4 if wide else LANES * 2
    at += first * (head + group * LANES)
    out = side
    for _ in range(first, last):
        scale = group_scale(stream, at, wide)
        at += head
        for _ in range(group):
            store(panel, out, load_int8(stream, at) * scale)
            at += LANES
            out += PANEL


@inner
def widen_dense(panel, side, stream, at, form, first, last):
    """Fill side `side` of the panel with columns `first` to `last` - 1 of a tile of numbers of one `form`."""
    if form == SINGLE:
        for k in range(first, last):
            store(panel, side + (k - first) * PANEL, load_f32(stream, at + k * LANES * 4))
    elif form == BRAIN:
        for k in range(first, last):
            store(panel, side + (k - first) * PANEL, load_bf16(stream, at + k * LANES * 2))
    else:
        for k in range(first, last):
            store(panel, side + (k - first) * PANEL, load_f16(stream, at + k * LANES * 2))


@inner
def widen(panel, side, stream, at, form, wide, zeros, group, first, last):
    """Groups first … last - 1 (dense: columns) of the tile at byte `at` → one side of the panel."""
    if form == FOUR:
        widen_four(panel, side, stream, at, wide, zeros, group, first, last)
    elif form == EIGHT:
        widen_eight(panel, side, stream, at, wide, group, first, last)
    else:
        widen_dense(panel, side, stream, at, form, first, last)


@inner
def multiply_panel(panel, depth, x, base, stride, first, rows, out, width, left, right):
    """out[first + r, columns] += x[r, base … base + depth] · panel for `rows` rows r.

    x: rows of `stride` values, readable up to the next multiple of GEMM_ROWS rows; out: rows of `width`
    values; left, right: (first output, count) of the panel's two tiles.
    """
    for row in range(0, rows, GEMM_ROWS):
        acc = spread(splat(ZERO), PAIRS)
        at = row * stride + base
        for k in range(depth):
            acc = fma_pairs(acc, load(panel, k * PANEL), load(panel, k * PANEL + LANES), x, at + k, stride)
        used = min(rows - row, GEMM_ROWS)
        target = (first + row) * width
        add_to(every_other(acc, 0), out, target + left[0], width, used, left[1])
        add_to(every_other(acc, 1), out, target + right[0], width, used, right[1])


@inner
def add_to(tile, out, at, width, rows, columns):
    """out[at + r·width …] += tile[r] for the first `rows` rows and `columns` lanes."""
    store_rows(add_rows(tile, out, at, width, rows, columns), out, at, width, rows, columns)
