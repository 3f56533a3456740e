# mypy: allow-untyped-defs
"""Paged causal attention with an online softmax, for any mix of chunk lengths.

A row of a tile is one query head of one token; the heads that share a key head run together. The keys
of a block stand side by side, so that a vector holds one component of sixteen keys. Scores of up to
CHUNK keys are formed at a time, and a running maximum and sum rescale what came before (Milakov and
Gimelshein, 2018; Rabe and Staats, 2021). Slots past a row's last key never enter a sum, whatever they hold.

    keys    (NB, Hkv, D, 16)       values  (NB, Hkv, 16, Dp), Dp = D up to a multiple of 16
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from llmrs_cli.kernels.simd.compiling import inner, parallel_entry
from llmrs_cli.kernels.simd.elementwise import exp_lanes
from llmrs_cli.kernels.simd.lanes import (
    LANES,
    between,
    load,
    max_lanes,
    maximum,
    splat,
    store,
    store_first,
    sum_lanes,
)
from llmrs_cli.kernels.simd.tiles import fma_rows, load_rows, spread, store_rows

BLOCK = LANES
"""Tokens of a KV block: one vector of keys."""
CHUNK = 128
"""Keys whose scores are held at a time."""
FEW, MANY = 4, 12
"""Rows of the two kinds of tile."""
SPLIT_KEYS = 256
"""Keys that are worth a task of their own where tiles are too few for the threads."""
ZERO, NONE = np.float32(0), np.float32(-np.inf)


def make_products(rows: int) -> tuple[Any, Any]:
    """The two products of attention for a fixed number of rows."""

    @inner
    def score_block(q, keys, base, depth, width, scores, at):
        """scores[r, at …] = q[r] · the sixteen keys at flat index `base`."""
        acc = spread(splat(ZERO), rows)
        for d in range(depth):
            acc = fma_rows(acc, load(keys, base + d * BLOCK), q, d, width)
        store_rows(acc, scores, at, CHUNK, rows, LANES)

    @inner
    def mix_block(weights, at, values, base, width, count, mixed):
        """mixed[r] += Σ weights[r, at + t] · value t of the first `count` of a block."""
        for d in range(0, width, LANES):
            acc = load_rows(rows, mixed, d, width)
            for t in range(count):
                acc = fma_rows(acc, load(values, base + t * width + d), weights, at + t, CHUNK)
            store_rows(acc, mixed, d, width, rows, LANES)

    return score_block, mix_block


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
def gather_queries(q, tile, queries, width):
    """Copy a tile's query rows, zero-padded, to queries (MANY, width).

    tile: (first token, first row, rows used, query heads of a group, key head); row r of a sequence is
    head r % group of its token r // group.
    """
    token, row, used, group, kv_head = tile
    depth = q.shape[2]
    queries[:] = ZERO
    for r in range(used):
        head = kv_head * group + (row + r) % group
        for d in range(depth):
            queries[r * width + d] = q[token + (row + r) // group, head, d]


@inner
def attend_tile(
    queries, keys, values, table, sizes, used, limits, low, high, scale, scores, mixed, peaks, sums
):
    """Online softmax of a tile over keys low … high - 1; leaves Σ weight · value, maxima and sums.

    sizes: (kv head, kv heads, depth, width); limits: (first key, last key + 1) of each row.
    """
    kv_head, kv_heads, depth, width = sizes
    mixed[:] = ZERO
    scores[:] = ZERO
    for r in range(used):
        peaks[r] = NONE
        sums[r] = ZERO
    for start in range(low - low % BLOCK, high, CHUNK):
        length = min(CHUNK, high - start)
        for t in range(0, length, BLOCK):
            place = np.int64(table[(start + t) // BLOCK]) * kv_heads + kv_head
            if used <= FEW:
                score_few(queries, keys, place * depth * BLOCK, depth, width, scores, t)
            else:
                score_many(queries, keys, place * depth * BLOCK, depth, width, scores, t)
        for r in range(used):
            first, last = max(limits[r, 0], low) - start, min(limits[r, 1], high) - start
            top, factor, total = soften_row(scores, r, length, first, last, peaks[r], scale)
            peaks[r] = top
            sums[r] = sums[r] * factor + total
            scale_row(mixed, r * width, width, factor)
        for t in range(0, length, BLOCK):
            place = np.int64(table[(start + t) // BLOCK]) * kv_heads + kv_head
            count = min(BLOCK, length - t)
            if used <= FEW:
                mix_few(scores, t, values, place * BLOCK * width, width, count, mixed)
            else:
                mix_many(scores, t, values, place * BLOCK * width, width, count, mixed)


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
def attend(q, keys, values, query_start, context_lens, tables, scale, window, out, threads):
    """out = softmax(scale · q · keysᵀ) · values over each sequence's visible keys.

    q: (T, Hq, D) f32; query_start: (S+1,) i32; context_lens: (S,) i32; tables: (S, MB) i32;
    window: keys that a query sees, 0 for all; out: (T, Hq·D) f32.
    """
    heads, depth = q.shape[1], q.shape[2]
    kv_heads, width = keys.shape[1], values.shape[3]
    group = heads // kv_heads
    tiles = plan_tiles(query_start, group, np.empty((0, 2), np.int64))
    work = np.empty((tiles, 2), np.int64)
    plan_tiles(query_start, group, work)
    parts_each = 1
    if tiles * kv_heads < 2 * threads:
        parts_each = min(2 * threads, max(1, np.int64(context_lens.max()) // SPLIT_KEYS))
    parts = np.empty((tiles * kv_heads if parts_each > 1 else 0, MANY, parts_each, width + 2), np.float32)
    for thread in prange(threads):
        queries = np.empty(MANY * width, np.float32)
        scores = np.empty(MANY * CHUNK, np.float32)
        mixed = np.empty(MANY * width, np.float32)
        peaks = np.empty(MANY, np.float32)
        sums = np.empty(MANY, np.float32)
        limits = np.empty((MANY, 2), np.int64)
        for task in range(thread, tiles * kv_heads * parts_each, threads):
            part, tile, kv_head = (
                task % parts_each,
                task // parts_each // kv_heads,
                task // parts_each % kv_heads,
            )
            s, row = work[tile, 0], work[tile, 1]
            count = query_start[s + 1] - query_start[s]
            used = min(MANY, count * group - row)
            gather_queries(q, (query_start[s], row, used, group, kv_head), queries, width)
            low, high = row_limits(np.int64(context_lens[s]), count, group, row, used, window, limits)
            share = (high - low + parts_each - 1) // parts_each
            low, high = low + part * share, min(high, low + (part + 1) * share)
            sizes = (kv_head, kv_heads, depth, width)
            attend_tile(
                queries,
                keys,
                values,
                tables[s],
                sizes,
                used,
                limits,
                low,
                high,
                scale,
                scores,
                mixed,
                peaks,
                sums,
            )
            for r in range(used):
                if parts_each == 1:
                    token = query_start[s] + (row + r) // group
                    head = kv_head * group + (row + r) % group
                    write_row(mixed, r, width, depth, sums[r], out, (token * heads + head) * depth)
                else:
                    here = parts[tile * kv_heads + kv_head, r, part]
                    here[0] = peaks[r]
                    here[1] = sums[r]
                    here[2:] = mixed[r * width : (r + 1) * width]
    if parts_each > 1:
        merged = np.empty(width, np.float32)
        for tile in range(tiles):
            s, row = work[tile, 0], work[tile, 1]
            for kv_head in range(kv_heads):
                for r in range(min(MANY, (query_start[s + 1] - query_start[s]) * group - row)):
                    total = merge_parts(parts[tile * kv_heads + kv_head, r], parts_each, width, scale, merged)
                    token = query_start[s] + (row + r) // group
                    head = kv_head * group + (row + r) % group
                    write_row(merged, 0, width, depth, total, out, (token * heads + head) * depth)
