# mypy: allow-untyped-defs
"""Paged causal attention with an online softmax, for any mix of chunk lengths.

A row of a tile is one query head of one token; the heads that share a key head run together. The keys
of a block stand side by side, so that a vector holds one component of sixteen keys. Scores of up to
CHUNK keys are formed at a time, and a running maximum and sum rescale what came before (Milakov and
Gimelshein, 2018; Rabe and Staats, 2021). Slots past a row's last key never enter a sum, whatever they hold.

The cache is one array for all layers, block by block, so that a block in use is one stretch of memory:

    pool (NB, layers, Hkv, 16 · (D + Dp))    a head's keys (D, 16), then its values (16, Dp)

with Dp = D up to a multiple of 16. A *place* says where a layer's part lies in it: (floats of a block,
first float of the layer in a block, Hkv, D, Dp).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from llmrs_cli.kernels.simd.compiling import inner, parallel_entry
from llmrs_cli.kernels.simd.elementwise import copy_row, exp_lanes
from llmrs_cli.kernels.simd.lanes import (
    LANES,
    between,
    load,
    max_lanes,
    maximum,
    prefetch,
    splat,
    store,
    store_first,
    sum_lanes,
)
from llmrs_cli.kernels.simd.target import ATTENTION_ROWS
from llmrs_cli.kernels.simd.tiles import every_other, fma_pairs, load_rows, paired, spread, store_rows

BLOCK = LANES
"""Tokens of a KV block: one vector of keys."""
CHUNK = 128
"""Keys whose scores are held at a time: an even number of blocks."""
FEW, MANY = 4, ATTENTION_ROWS
"""Rows of the two kinds of tile."""
SPLIT_KEYS = 256
"""Keys that are worth a task of their own where tiles are too few for the threads."""
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


@inner
def write_row(mixed, row, width, depth, total, out, at):
    """out[at …] = a row's Σ weight · value, divided by its sum of weights."""
    share = splat(np.float32(1) / total)
    for d in range(0, depth, LANES):
        store_first(out, at + d, load(mixed, row * width + d) * share, min(LANES, depth - d))


@inner
def merge_parts(parts, count, width, scale, target):
    """Bring `count` partial sums of a row (each maximum, sum, Σ weight · value) to one; → sum of weights."""
    top = NONE
    for p in range(count):
        top = max(top, parts[p, 0])
    total = ZERO
    target[:width] = ZERO
    for p in range(count):
        factor = np.float32(np.exp((parts[p, 0] - top) * scale)) if parts[p, 1] != 0 else ZERO
        total += parts[p, 1] * factor
        for d in range(width):
            target[d] += parts[p, 2 + d] * factor
    return total


@inner
def plan_tiles(query_start, group, work):
    """(sequence, first row) of every tile; returns their number, or only counts if `work` is empty."""
    count = 0
    for s in range(query_start.size - 1):
        for row in range(0, (query_start[s + 1] - query_start[s]) * group, MANY):
            if work.size:
                work[count, 0] = s
                work[count, 1] = row
            count += 1
    return count


@inner
def row_limits(context, queries, group, row, used, window, limits):
    """limits[r] = (first key, last key + 1) that row `row + r` sees; returns the range of them all."""
    for r in range(used):
        last = context - queries + (row + r) // group + 1
        limits[r, 1] = last
        limits[r, 0] = max(0, last - window) if window else 0
    return limits[0, 0], limits[used - 1, 1]


@parallel_entry
def attend(q, pool, place, query_start, context_lens, tables, scale, window, out, threads):
    """out = softmax(scale · q · keysᵀ) · values over each sequence's visible keys.

    q: (T, Hq, D) f32; query_start: (S+1,) i32; context_lens: (S,) i32; tables: (S, MB) i32;
    window: keys that a query sees, 0 for all; out: (T, Hq·D) f32.
    """
    _, _, kv_heads, depth, width = place
    heads = q.shape[1]
    group = heads // kv_heads
    tiles = plan_tiles(query_start, group, np.empty((0, 2), np.int64))
    work = np.empty((tiles, 2), np.int64)
    plan_tiles(query_start, group, work)
    pieces = 1
    if tiles * kv_heads < 2 * threads:
        pieces = min(2 * threads, max(1, np.int64(context_lens.max()) // SPLIT_KEYS))
    parts = np.empty((tiles * kv_heads if pieces > 1 else 0, MANY, pieces, width + 2), np.float32)
    factor = np.float32(scale)
    for thread in prange(threads):
        queries = np.empty(MANY * width, np.float32)
        scores = np.empty(MANY * CHUNK, np.float32)
        mixed = np.empty(MANY * width, np.float32)
        peaks = np.empty(MANY, np.float32)
        sums = np.empty(MANY, np.float32)
        limits = np.empty((MANY, 2), np.int64)
        for task in range(thread, tiles * kv_heads * pieces, threads):
            piece, tile, kv_head = task % pieces, task // pieces // kv_heads, task // pieces % kv_heads
            s, row = work[tile, 0], work[tile, 1]
            count = query_start[s + 1] - query_start[s]
            used = min(MANY, count * group - row)
            gather_queries(q, (query_start[s], row, used, group, kv_head), depth, queries, width)
            low, high = row_limits(np.int64(context_lens[s]), count, group, row, used, window, limits)
            share = (high - low + pieces - 1) // pieces
            low, high = low + piece * share, min(high, low + (piece + 1) * share)
            attend_tile(
                queries,
                pool,
                tables[s],
                place,
                kv_head,
                used,
                limits,
                low,
                high,
                factor,
                scores,
                mixed,
                peaks,
                sums,
            )
            for r in range(used):
                if pieces == 1:
                    token = query_start[s] + (row + r) // group
                    head = kv_head * group + (row + r) % group
                    write_row(mixed, r, width, depth, sums[r], out, (token * heads + head) * depth)
                else:
                    here = parts[tile * kv_heads + kv_head, r, piece]
                    here[0] = peaks[r]
                    here[1] = sums[r]
                    here[2:] = mixed[r * width : (r + 1) * width]
    if pieces > 1:
        merged = np.empty(width, np.float32)
        for tile in range(tiles):
            s, row = work[tile, 0], work[tile, 1]
            for kv_head in range(kv_heads):
                for r in range(min(MANY, (query_start[s + 1] - query_start[s]) * group - row)):
                    total = merge_parts(parts[tile * kv_heads + kv_head, r], pieces, width, factor, merged)
                    token = query_start[s] + (row + r) // group
                    head = kv_head * group + (row + r) % group
                    write_row(merged, 0, width, depth, total, out, (token * heads + head) * depth)
