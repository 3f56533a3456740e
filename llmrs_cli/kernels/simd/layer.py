# mypy: allow-untyped-defs
"""The small loops of a layer that are not products: embedding rows, norms, rotation, storing keys and values."""

from __future__ import annotations

import numpy as np

from llmrs_cli.kernels.simd.atomics import hold, package
from llmrs_cli.kernels.simd.compiling import entry, inner
from llmrs_cli.kernels.simd.crew import share_out
from llmrs_cli.kernels.simd.elementwise import copy_row, gate_columns, norm_row, rotate_row
from llmrs_cli.kernels.simd.gemm import PANEL, widen
from llmrs_cli.kernels.simd.kinds import HEADS, INDICES, PLACE, REAL, ROWS, VALUES
from llmrs_cli.kernels.simd.lanes import LANES
from llmrs_cli.kernels.simd.layout import EIGHT, FOUR
from llmrs_cli.kernels.simd.memory import store_one

PART_TOKENS = 8
"""Tokens that are worth a part of their own."""


@entry
def embed(stream, layout, ids, out):
    """out[t] = row ids[t] of a matrix of one part: (T,) i32 → (T, K) f32."""
    form, wide, zeros, group, groups, tile_bytes = layout
    panel = np.empty(group * groups * PANEL, np.float32)
    parts = groups if form in (FOUR, EIGHT) else group
    for t in range(ids.size):
        tile, lane = np.int64(ids[t]) // LANES, np.int64(ids[t]) % LANES
        widen(panel, 0, stream, tile * tile_bytes, form, wide, zeros, group, 0, parts)
        for k in range(out.shape[1]):
            out[t, k] = panel[k * PANEL + lane]


@entry
def rms_norm(x, weight, eps, out):
    """out = x / sqrt(mean(x²) + eps) · weight: (M, C) f32."""
    columns = x.shape[1]
    for row in range(x.shape[0]):
        norm_row(x, row * columns, columns, weight, eps, out, row * columns)


@entry
def silu_mul(gate_up, out):
    """out = silu(gate) · up: (T, 2F) → (T, F) f32."""
    rows, width = out.shape
    for first in range(0, width, LANES):
        gate_columns(gate_up, out, rows, width, first, min(LANES, width - first))


@entry
def rotate(x, positions, cosines, sines):
    """Rotate heads by position, in place: x (T, H, D) f32, positions (T,) i32, tables (P, D/2) f32."""
    _, heads, depth = x.shape
    half = depth // 2
    for t in range(positions.size):
        at = np.int64(positions[t]) * half
        for h in range(heads):
            row = (t * heads + h) * depth
            rotate_row(x, row, half, cosines, sines, at, x, row)


@inner
def put_head(k, k_at, v, v_at, pool, at, offset, depth, width):
    """Key and value of one head → slot `offset` of the block's part at flat index `at`."""
    for d in range(depth):
        store_one(pool, at + d * LANES + offset, k, k_at + d)
    copy_row(v, v_at, depth, pool, at + depth * LANES + offset * width)


@inner
def slot_at(slot, place):
    """(flat index of the first head's keys in the slot's block, offset in the block)."""
    stride, first, _, _, _ = place
    return np.int64(slot) // LANES * stride + first, np.int64(slot) % LANES


@entry
def store_kv(k, v, pool, place, slots):
    """Write (T, Hkv, D) keys and values to their slots; see `attention` for the cache's order."""
    _, _, kv_heads, depth, width = place
    for t in range(slots.size):
        at, offset = slot_at(slots[t], place)
        for h in range(kv_heads):
            source = (t * kv_heads + h) * depth
            put_head(k, source, v, source, pool, at + h * LANES * (depth + width), offset, depth, width)


@inner
def finish_token(t, qkv, positions, slots, tables, norms, eps, pool, place, q):
    """Norm and rotate one token's heads; queries go to `q`, keys and values to the cache."""
    cosines, sines = tables
    q_norm, k_norm = norms
    _, _, kv_heads, depth, width = place
    heads = q.shape[1]
    start, half = t * qkv.shape[1], depth // 2
    angle = np.int64(positions[t]) * half
    for h in range(heads + kv_heads):
        at = start + h * depth
        norm = q_norm if h < heads else k_norm
        if norm.size:
            norm_row(qkv, at, depth, norm, eps, qkv, at)
        if h < heads:
            rotate_row(qkv, at, half, cosines, sines, angle, q, (t * heads + h) * depth)
        else:
            rotate_row(qkv, at, half, cosines, sines, angle, qkv, at)
    block, offset = slot_at(slots[t], place)
    for h in range(kv_heads):
        k_at = start + (heads + h) * depth
        v_at = k_at + kv_heads * depth
        put_head(qkv, k_at, qkv, v_at, pool, block + h * LANES * (depth + width), offset, depth, width)


pack, unpack = package(ROWS, INDICES, INDICES, ROWS, ROWS, VALUES, VALUES, REAL, VALUES, PLACE, HEADS)


def finish_share(part, parts, arguments):
    """A part of the tokens."""
    qkv, positions, slots, cosines, sines, q_norm, k_norm, eps, pool, place, q = unpack(arguments)
    tokens = positions.size
    for t in range(tokens * part // parts, tokens * (part + 1) // parts):
        finish_token(t, qkv, positions, slots, (cosines, sines), (q_norm, k_norm), eps, pool, place, q)


@entry
def finish_qkv(share, board, qkv, positions, slots, cosines, sines, q_norm, k_norm, eps, pool, place, q):
    """qkv (T, (Hq + 2·Hkv)·D) → q (T, Hq, D), and keys and values in the cache. Norms may be empty.

    share: address of `finish_share`.
    """
    arguments = (qkv, positions, slots, cosines, sines, q_norm, k_norm, eps, pool, place, q)
    share_out(board, share, max(1, positions.size // PART_TOKENS), pack(arguments))
    hold(arguments)
