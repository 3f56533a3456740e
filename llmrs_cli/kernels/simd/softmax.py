# mypy: allow-untyped-defs
"""The inner loops of attention: scores of a tile of query rows, their softmax, and the mix of values.

Scores of up to CHUNK keys are formed at a time, and a running maximum and sum rescale what came before
(Milakov and Gimelshein, 2018; Rabe and Staats, 2021). Slots past a row's last key never enter a sum,
whatever they hold. See `attention` for rows, tiles, the order of the cache and what a *place* is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llmrs_cli.kernels.simd.compiling import inner
from llmrs_cli.kernels.simd.elementwise import copy_row, exp_lanes
from llmrs_cli.kernels.simd.lanes import LANES, between, max_lanes, maximum, splat, sum_lanes
from llmrs_cli.kernels.simd.memory import load, prefetch, store
from llmrs_cli.kernels.simd.target import ATTENTION_ROWS
from llmrs_cli.kernels.simd.tiles import every_other, fma_pairs, load_rows, paired, spread, store_rows

BLOCK = LANES
"""Tokens of a KV block: one vector of keys."""
CHUNK = 128
"""Keys whose scores are held at a time: an even number of blocks."""
FEW, MANY = 4, ATTENTION_ROWS
"""Rows of the two kinds of tile."""
ZERO, NONE = np.float32(0), np.float32(-np.inf)


@inner
def head_at(table, block, place, kv_head):
    """Flat index of a head's keys in the sequence's block number `block`."""
    stride, first, _, depth, width = place
    return np.int64(table[block]) * stride + first + kv_head * BLOCK * (depth + width)


def make_products(rows: int) -> tuple[Any, Any]:
    """The two products of attention for a fixed number of rows."""
    pairs = 2 * rows

    @inner
    def score(queries, pool, table, place, kv_head, start, length, scores):
        """scores[r, t] = query r · key start + t, for `length` keys, two blocks at a time."""
        _, _, _, depth, width = place
        last = (start + length - 1) // BLOCK
        for t in range(0, length, 2 * BLOCK):
            block = (start + t) // BLOCK
            left = head_at(table, block, place, kv_head)
            right = head_at(table, min(block + 1, last), place, kv_head)
            soon = head_at(table, min(block + 2, last), place, kv_head) - left
            later = head_at(table, min(block + 3, last), place, kv_head) - right
            acc = spread(splat(ZERO), pairs)
            for d in range(depth):
                prefetch(pool, left + soon + d * BLOCK)
                prefetch(pool, right + later + d * BLOCK)
                keys = load(pool, left + d * BLOCK), load(pool, right + d * BLOCK)
                acc = fma_pairs(acc, keys[0], keys[1], queries, d, width)
            store_rows(every_other(acc, 0), scores, t, CHUNK, rows, LANES)
            store_rows(every_other(acc, 1), scores, t + BLOCK, CHUNK, rows, LANES)

    @inner
    def mix(weights, pool, table, place, kv_head, start, length, mixed):
        """mixed[r] += Σ weights[r, t] · value start + t, two vectors of columns at a time."""
        _, _, _, depth, width = place
        last = (start + length - 1) // BLOCK
        for d in range(0, width, 2 * LANES):
            e = min(d + LANES, width - LANES)
            acc = paired(load_rows(rows, mixed, d, width), load_rows(rows, mixed, e, width))
            for t in range(0, length, BLOCK):
                at = head_at(table, (start + t) // BLOCK, place, kv_head) + depth * BLOCK
                soon = (
                    head_at(table, min((start + t) // BLOCK + 1, last), place, kv_head) + depth * BLOCK - at
                )
                for key in range(min(BLOCK, length - t)):
                    value = at + key * width
                    prefetch(pool, value + soon + d)
                    prefetch(pool, value + soon + e)
                    acc = fma_pairs(
                        acc, load(pool, value + d), load(pool, value + e), weights, t + key, CHUNK
                    )
            store_rows(every_other(acc, 0), mixed, d, width, rows, LANES)
            store_rows(every_other(acc, 1), mixed, e, width, rows, LANES)

    return score, mix


score_few, mix_few = make_products(FEW)
score_many, mix_many = make_products(MANY)


@inner
def soften_row(scores, row, length, first, last, peak, scale):
    """Scores of a row → exp((score - maximum) · scale) in place, zero outside of keys first … last - 1.

    Returns the maximum so far, the factor on what was summed before, and the sum of the row.
    """
    base = row * CHUNK
    highest = splat(NONE)
    for t in range(0, length, LANES):
        highest = maximum(between(load(scores, base + t), first - t, last - t, splat(NONE)), highest)
    top = max(peak, max_lanes(highest))
    total = splat(ZERO)
    for t in range(0, length, LANES):
        weight = exp_lanes((load(scores, base + t) - splat(top)) * splat(scale))
        weight = between(weight, first - t, last - t, splat(ZERO))
        store(scores, base + t, weight)
        total = total + weight
    factor = max_lanes(exp_lanes((splat(peak) - splat(top)) * splat(scale))) if peak > NONE else ZERO
    return top, factor, sum_lanes(total)


@inner
def scale_row(values, at, width, factor):
    """Multiply `width` values from `at` on, whole vectors of them, by `factor`, in place."""
    for d in range(0, width, LANES):
        store(values, at + d, load(values, at + d) * splat(factor))


@inner
def gather_queries(q, tile, depth, queries, width):
    """Copy a tile's query rows, zero-padded, to queries (MANY, width).

    tile: (first token, first row, rows used, query heads of a group, key head); row r of a sequence is
    head r % group of its token r // group.
    """
    token, row, used, group, kv_head = tile
    queries[:] = ZERO
    for r in range(used):
        head = kv_head * group + (row + r) % group
        source = ((token + (row + r) // group) * q.shape[1] + head) * depth
        copy_row(q, source, depth, queries, r * width)


@inner
def attend_tile(
    queries, pool, table, place, kv_head, used, limits, low, high, scale, scores, mixed, peaks, sums
):
    """Online softmax of a tile over keys low … high - 1; leaves Σ weight · value, maxima and sums.

    limits: (first key, last key + 1) of each row.
    """
    width = place[4]
    mixed[:] = ZERO
    for r in range(used):
        peaks[r] = NONE
        sums[r] = ZERO
    for start in range(low - low % BLOCK, high, CHUNK):
        length = min(CHUNK, high - start)
        if used <= FEW:
            score_few(queries, pool, table, place, kv_head, start, length, scores)
        else:
            score_many(queries, pool, table, place, kv_head, start, length, scores)
        for r in range(used):
            first, last = max(limits[r, 0], low) - start, min(limits[r, 1], high) - start
            top, factor, total = soften_row(scores, r, length, first, last, peaks[r], scale)
            peaks[r] = top
            sums[r] = sums[r] * factor + total
            scale_row(mixed, r * width, width, factor)
        if used <= FEW:
            mix_few(scores, pool, table, place, kv_head, start, length, mixed)
        else:
            mix_many(scores, pool, table, place, kv_head, start, length, mixed)
