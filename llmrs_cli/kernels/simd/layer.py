# mypy: allow-untyped-defs
"""The small loops of a layer that are not products: embedding rows, norms, rotation, storing keys and values."""

from __future__ import annotations

import numpy as np
from numba import prange

from llmrs_cli.kernels.simd.compiling import entry, inner, parallel_entry
from llmrs_cli.kernels.simd.elementwise import gate_columns, norm_row, rotate_row
from llmrs_cli.kernels.simd.gemm import PANEL, widen
from llmrs_cli.kernels.simd.lanes import LANES
from llmrs_cli.kernels.simd.layout import EIGHT, FOUR

PARALLEL_FROM = 16
"""Tokens from which a second thread pays."""


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
            rotate_row(x, (t * heads + h) * depth, half, cosines, sines, at)


@entry
def store_kv(k, v, keys, values, slots):
    """Write (T, Hkv, D) keys and values to their slots; see `attention` for the cache's order."""
    tokens, heads, depth = k.shape
    for t in range(tokens):
        block, offset = np.int64(slots[t]) // LANES, np.int64(slots[t]) % LANES
        for h in range(heads):
            for d in range(depth):
                keys[block, h, d, offset] = k[t, h, d]
                values[block, h, offset, d] = v[t, h, d]


@inner
def finish_token(t, qkv, positions, slots, tables, norms, eps, keys, values, q):
    """Norm and rotate one token's heads; queries go to `q`, keys and values to the cache."""
    cosines, sines = tables
    q_norm, k_norm = norms
    heads, depth = q.shape[1], q.shape[2]
    kv_heads = keys.shape[1]
    block, offset = np.int64(slots[t]) // LANES, np.int64(slots[t]) % LANES
    start, half = t * qkv.shape[1], depth // 2
    angle = np.int64(positions[t]) * half
    for h in range(heads + kv_heads):
        at = start + h * depth
        norm = q_norm if h < heads else k_norm
        if norm.size:
            norm_row(qkv, at, depth, norm, eps, qkv, at)
        rotate_row(qkv, at, half, cosines, sines, angle)
    for h in range(heads):
        for d in range(depth):
            q[t, h, d] = qkv[t, h * depth + d]
    for h in range(kv_heads):
        k_at, v_at = (heads + h) * depth, (heads + kv_heads + h) * depth
        for d in range(depth):
            keys[block, h, d, offset] = qkv[t, k_at + d]
            values[block, h, offset, d] = qkv[t, v_at + d]


@parallel_entry
def finish_qkv(qkv, positions, slots, cosines, sines, q_norm, k_norm, eps, keys, values, q, threads):
    """qkv (T, (Hq + 2·Hkv)·D) → q (T, Hq, D), and keys and values in the cache. Norms may be empty."""
    tokens = positions.size
    if tokens < PARALLEL_FROM:
        for t in range(tokens):
            finish_token(t, qkv, positions, slots, (cosines, sines), (q_norm, k_norm), eps, keys, values, q)
    else:
        for thread in prange(threads):
            for t in range(tokens * thread // threads, tokens * (thread + 1) // threads):
                finish_token(
                    t, qkv, positions, slots, (cosines, sines), (q_norm, k_norm), eps, keys, values, q
                )
