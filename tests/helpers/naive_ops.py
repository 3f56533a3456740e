"""The primitive ops once more, as loops and textbook formulas in float64: what every backend is compared with.

Nothing here is shared with a backend. Arguments are host arrays and canonical weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.backends.handles import Geometry
from llmrs_cli.engine.weights.packed import Dense, Packed4, Permuted4, Weight, bf16_to_f32

Wide = NDArray[np.float64]
Values = NDArray[np.float32]


def values(weight: Weight) -> Wide:
    """(N, K) from the stored codes, element by element of the formula in `packed`."""
    if isinstance(weight, Dense):
        data = bf16_to_f32(weight.data) if weight.data.dtype == np.uint16 else weight.data  # type: ignore[arg-type]
        return data.astype(np.float64)
    n, k = weight.shape
    out = np.empty((n, k))
    if isinstance(weight, Permuted4):
        for column, stored in enumerate(values(weight.weight).T):
            out[:, weight.inputs[column]] = stored
        return out
    for row in range(n):
        for column in range(k):
            g = column // weight.group
            scale = float(weight.scales[row, g])
            if not isinstance(weight, Packed4):
                out[row, column] = float(weight.codes[row, column]) * scale
                continue
            code = (int(weight.codes[row, column // 2]) >> (4 * (column % 2))) & 15
            if weight.zeros is not None:
                out[row, column] = (code - int(weight.zeros[row, g])) * scale
            else:
                assert weight.offsets is not None
                out[row, column] = np.float32(np.float32(code) * np.float32(scale)) + np.float32(
                    weight.offsets[row, g]
                )
    return out.astype(np.float32).astype(np.float64)


def linear(x: Values, parts: Sequence[Weight], bias: Sequence[Dense | None]) -> Wide:
    pieces = []
    for part, own in zip(parts, bias, strict=True):
        product = x.astype(np.float64) @ values(part).T
        pieces.append(product if own is None else product + values(own))
    return np.concatenate(pieces, axis=-1)


def rms_norm(x: Values, weight: Values, eps: float) -> Wide:
    wide = x.astype(np.float64)
    return np.asarray(wide * weight / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + eps))


def rope(x: Values, positions: Sequence[int], cos: Values, sin: Values) -> Wide:
    """Pairs (a, b) as complex numbers turned by the angle of their position."""
    half = x.shape[-1] // 2
    turn = (cos.astype(np.float64) + 1j * sin.astype(np.float64))[list(positions)][:, None]
    turned = (x[..., :half] + 1j * x[..., half:].astype(np.float64)) * turn
    return np.concatenate([turned.real, turned.imag], axis=-1)


def silu_mul(gate_up: Values) -> Wide:
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=-1)
    with np.errstate(over="ignore"):
        return np.asarray(gate * up / (1 + np.exp(-gate)))


def attention(q: Values, keys: Values, values_: Values, geometry: Geometry) -> Wide:
    """The last n queries (n, Hq, D) over all c keys (c, Hkv, D) of one sequence → (n, Hq·D)."""
    n, context = len(q), len(keys)
    out = np.empty((n, geometry.heads, geometry.head_dim))
    for i in range(n):
        position = context - n + i
        first = 0 if geometry.window is None else max(0, position + 1 - geometry.window)
        for h in range(geometry.heads):
            own = h * geometry.kv_heads // geometry.heads
            k = keys[first : position + 1, own].astype(np.float64)
            scores = k @ q[i, h].astype(np.float64) * geometry.head_dim**-0.5
            weights = np.exp(scores - scores.max())
            out[i, h] = weights @ values_[first : position + 1, own].astype(np.float64) / weights.sum()
    return out.reshape(n, -1)


def log_softmax(logits: Values) -> Wide:
    wide = logits.astype(np.float64)
    return np.asarray(wide - np.logaddexp.reduce(wide, axis=-1, keepdims=True))
