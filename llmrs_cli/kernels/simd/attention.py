# mypy: allow-untyped-defs
"""Paged causal attention with an online softmax, for any mix of chunk lengths.

A row of a tile is one query head of one token; the heads that share a key head run together. The keys
of a block stand side by side, so that a vector holds one component of sixteen keys. Tiles, key heads
and, where those are few, pieces of the keys make the parts of a job.

The cache is one array for all layers, block by block, so that a block in use is one stretch of memory:

    pool (NB, layers, Hkv, 16 · (D + Dp))    a head's keys (D, 16), then its values (16, Dp)

with Dp = D up to a multiple of 16. A *place* says where a layer's part lies in it: (floats of a block,
first float of the layer in a block, Hkv, D, Dp).
"""

from __future__ import annotations

import numpy as np

from llmrs_cli.kernels.simd.atomics import hold, package
from llmrs_cli.kernels.simd.compiling import entry, inner
from llmrs_cli.kernels.simd.crew import THREADS, share_out
from llmrs_cli.kernels.simd.kinds import (
    COUNTS,
    HEADS,
    INDICES,
    INT,
    PARTS,
    PLACE,
    ROWS,
    SINGLE,
    TABLE,
    VALUES,
)
from llmrs_cli.kernels.simd.lanes import LANES, splat
from llmrs_cli.kernels.simd.memory import load, store_first
from llmrs_cli.kernels.simd.softmax import CHUNK, MANY, attend_tile, gather_queries

SPLIT_KEYS = 64
"""Keys that are worth a task of their own where tiles are too few for the threads."""
ZERO, NONE = np.float32(0), np.float32(-np.inf)


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
def plan_tiles(query_start, group):
    """(tiles, 2): sequence and first row of every tile."""
    count = 0
    for s in range(query_start.size - 1):
        count += ((query_start[s + 1] - query_start[s]) * group + MANY - 1) // MANY
    work = np.empty((count, 2), np.int64)
    count = 0
    for s in range(query_start.size - 1):
        for row in range(0, (query_start[s + 1] - query_start[s]) * group, MANY):
            work[count, 0], work[count, 1] = s, row
            count += 1
    return work


@inner
def longest_of(context_lens):
    """The longest context of a step."""
    longest = np.int64(0)
    for length in context_lens:
        longest = max(longest, np.int64(length))
    return longest


@inner
def row_limits(context, queries, group, row, used, window, limits):
    """limits[r] = (first key, last key + 1) that row `row + r` sees; returns the range of them all."""
    for r in range(used):
        last = context - queries + (row + r) // group + 1
        limits[r, 1] = last
        limits[r, 0] = max(0, last - window) if window else 0
    return limits[0, 0], limits[used - 1, 1]


@inner
def row_target(start, row, group, kv_head, heads):
    """Which row of the outputs, heads of all tokens counted, a tile's row is."""
    return (start + row // group) * heads + kv_head * group + row % group


pack, unpack = package(HEADS, VALUES, PLACE, INDICES, INDICES, TABLE, SINGLE, INT, COUNTS, PARTS, ROWS)


def attend_share(part, parts, arguments):
    """Every `parts`-th task from number `part` on: a tile of rows, a key head and a piece of the keys."""
    q, pool, place, query_start, context_lens, tables, scale, window, work, partial, out = unpack(arguments)
    _, _, kv_heads, depth, width = place
    heads, pieces = q.shape[1], partial.shape[2]
    group = heads // kv_heads
    queries, mixed = np.empty(MANY * width, np.float32), np.empty(MANY * width, np.float32)
    scores, limits = np.empty(MANY * CHUNK, np.float32), np.empty((MANY, 2), np.int64)
    peaks, sums = np.empty(MANY, np.float32), np.empty(MANY, np.float32)
    for task in range(part, len(work) * kv_heads * pieces, parts):
        piece, tile, kv_head = task % pieces, task // pieces // kv_heads, task // pieces % kv_heads
        s, row = work[tile, 0], work[tile, 1]
        start, count = query_start[s], query_start[s + 1] - query_start[s]
        used = min(MANY, count * group - row)
        gather_queries(q, (start, row, used, group, kv_head), depth, queries, width)
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
            scale,
            scores,
            mixed,
            peaks,
            sums,
        )
        for r in range(used):
            if pieces == 1:
                target = row_target(start, row + r, group, kv_head, heads)
                write_row(mixed, r, width, depth, sums[r], out, target * depth)
            else:
                here = partial[tile * kv_heads + kv_head, r, piece]
                here[0], here[1] = peaks[r], sums[r]
                here[2:] = mixed[r * width : (r + 1) * width]


@inner
def merge_pieces(place, query_start, heads, scale, work, parts, out):
    """Bring the pieces of every row together."""
    _, _, kv_heads, depth, width = place
    group = heads // kv_heads
    merged = np.empty(width, np.float32)
    for tile in range(len(work)):
        s, row = work[tile, 0], work[tile, 1]
        start, count = query_start[s], query_start[s + 1] - query_start[s]
        for kv_head in range(kv_heads):
            for r in range(min(MANY, count * group - row)):
                pieces = parts[tile * kv_heads + kv_head, r]
                total = merge_parts(pieces, len(pieces), width, scale, merged)
                target = row_target(start, row + r, group, kv_head, heads)
                write_row(merged, 0, width, depth, total, out, target * depth)


@inner
def count_pieces(tasks, longest, threads):
    """Into how many pieces to cut each row's keys, so that every thread has something to do."""
    if tasks >= 2 * threads:
        return 1
    return min(2 * threads, max(1, longest // SPLIT_KEYS))


@entry
def attend(share, board, q, pool, place, query_start, context_lens, tables, scale, window, out):
    """out = softmax(scale · q · keysᵀ) · values over each sequence's visible keys.

    q: (T, Hq, D) f32; query_start: (S+1,) i32; context_lens: (S,) i32; tables: (S, MB) i32;
    window: keys that a query sees, 0 for all; out: (T, Hq·D) f32; share: address of `attend_share`.
    """
    _, _, kv_heads, _, width = place
    heads, factor = q.shape[1], np.float32(scale)
    work = plan_tiles(query_start, heads // kv_heads)
    tasks, longest = len(work) * kv_heads, longest_of(context_lens)
    pieces = count_pieces(tasks, longest, board[THREADS])
    parts = np.empty((tasks if pieces > 1 else 0, MANY, pieces, width + 2), np.float32)
    arguments = (q, pool, place, query_start, context_lens, tables, factor, window, work, parts, out)
    share_out(board, share, tasks * pieces, pack(arguments))
    hold(arguments)
    if pieces > 1:
        merge_pieces(place, query_start, heads, factor, work, parts, out)
