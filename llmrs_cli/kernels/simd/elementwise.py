# mypy: allow-untyped-defs
"""Row-wise loops without a matrix: exponential, norms, gates, rotation, and staging of activations.

The exponential is 2^n · p(r) with r = x - n·ln 2, |r| ≤ ln 2 / 2 (Cody and Waite, 1980) and p the Taylor
polynomial of degree 7: relative error under 2e-7.
"""

from __future__ import annotations

import math

import numpy as np

from llmrs_cli.kernels.simd.compiling import inner
from llmrs_cli.kernels.simd.lanes import LANES, fused, maximum, power_of_two, splat, sum_lanes
from llmrs_cli.kernels.simd.memory import load, load_first, store, store_first

ZERO, ONE = np.float32(0), np.float32(1)
LOWEST = np.float32(-87.0)
"""exp of less is taken for this: 2^-126 is the smallest normal number."""
HIGHEST = np.float32(88.0)
LOG2_E = np.float32(1 / math.log(2))
LN2_HIGH = np.float32(0.693145751953125)
LN2_LOW = np.float32(math.log(2) - 0.693145751953125)
ROUND = np.float32(1.5 * 2**23)
"""Adding it rounds to an integer, which stands in the low bits of the sum."""
C2, C3, C4, C5, C6, C7 = (np.float32(1 / math.factorial(n)) for n in range(2, 8))


@inner
def exp_lanes(x):
    """exp of lanes, held to [-87, 88]; NaN stays NaN."""
    x = maximum(splat(LOWEST), x)
    x = splat(ZERO) - maximum(splat(-HIGHEST), splat(ZERO) - x)
    shifted = fused(x, splat(LOG2_E), splat(ROUND))
    n = shifted - splat(ROUND)
    r = fused(n, splat(-LN2_HIGH), x)
    r = fused(n, splat(-LN2_LOW), r)
    p = fused(splat(C7), r, splat(C6))
    p = fused(p, r, splat(C5))
    p = fused(p, r, splat(C4))
    p = fused(p, r, splat(C3))
    p = fused(p, r, splat(C2))
    p = fused(p, r, splat(ONE))
    p = fused(p, r, splat(ONE))
    return p * power_of_two(shifted)


@inner
def silu_times(gate, up):
    """gate · sigmoid(gate) · up."""
    return gate / (splat(ONE) + exp_lanes(splat(ZERO) - gate)) * up


@inner
def gate_columns(gate_up, out, rows, width, first, count):
    """out[r, first …] = silu(gate) · up for `count` ≤ 16 columns; gate_up is (rows, 2·width)."""
    for row in range(rows):
        at = row * 2 * width + first
        value = silu_times(load_first(gate_up, at, count), load_first(gate_up, at + width, count))
        store_first(out, row * width + first, value, count)


@inner
def inverse_rms(x, base, columns, eps):
    """1 / sqrt(mean(x²) + eps) of `columns` values from flat index `base` on."""
    total = splat(ZERO)
    whole = columns - columns % LANES
    for k in range(0, whole, LANES):
        value = load(x, base + k)
        total = fused(value, value, total)
    value = load_first(x, base + whole, columns - whole)
    total = fused(value, value, total)
    return np.float32(1.0 / math.sqrt(sum_lanes(total) / np.float32(columns) + np.float32(eps)))


@inner
def norm_row(x, base, columns, weight, eps, out, target):
    """out[target …] = RMS norm of x[base …] times `weight`; may be in place."""
    scale = splat(inverse_rms(x, base, columns, eps))
    whole = columns - columns % LANES
    for k in range(0, whole, LANES):
        store(out, target + k, load(x, base + k) * scale * load(weight, k))
    left = columns - whole
    value = load_first(x, base + whole, left) * scale * load_first(weight, whole, left)
    store_first(out, target + whole, value, left)


@inner
def copy_row(x, base, columns, out, target):
    """Copy `columns` values from `base` of x to `target` of out."""
    whole = columns - columns % LANES
    for k in range(0, whole, LANES):
        store(out, target + k, load(x, base + k))
    store_first(out, target + whole, load_first(x, base + whole, columns - whole), columns - whole)


@inner
def group_sums(x, group, sums):
    """sums[i] = Σ of the i-th run of `group` values of x, row after row."""
    whole = group - group % LANES
    for i in range(sums.size):
        at = i * group
        total = load_first(x, at + whole, group - whole)
        for k in range(0, whole, LANES):
            total = total + load(x, at + k)
        sums[i] = sum_lanes(total)


@inner
def rotate_row(x, base, half, cosines, sines, at, out, target):
    """Rotate one head of 2·half values: (a, b) → (a·cos - b·sin, b·cos + a·sin); may be in place."""
    for k in range(0, half, LANES):
        count = min(LANES, half - k)
        if count == LANES:
            a, b = load(x, base + k), load(x, base + half + k)
            cos, sin = load(cosines, at + k), load(sines, at + k)
            store(out, target + k, fused(a, cos, splat(ZERO) - b * sin))
            store(out, target + half + k, fused(b, cos, a * sin))
        else:
            a, b = load_first(x, base + k, count), load_first(x, base + half + k, count)
            cos, sin = load_first(cosines, at + k, count), load_first(sines, at + k, count)
            store_first(out, target + k, fused(a, cos, splat(ZERO) - b * sin), count)
            store_first(out, target + half + k, fused(b, cos, a * sin), count)
