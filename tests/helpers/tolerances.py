"""How far a result may lie from the float64 oracle, by op and by the arithmetic of the backend.

An error passes if |got - wanted| ≤ relative · |wanted| + row · (largest |wanted| along the last axis).
The second part is for sums, whose rounding grows with their terms and not with their value.
Arithmetics: `float64` sums float64 and rounds once (reference); `float32` accumulates in float32 (cpu).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ULP = 2.0**-24
"""Half the distance of neighbouring float32 numbers, relative: one rounding to float32."""

ARITHMETIC = {"reference": "float64", "cpu": "float32"}
"""By name of the backend."""


@dataclass(frozen=True)
class Tolerance:
    relative: float
    row: float
    reason: str


GOLDEN_LOGITS = {"reference": 2e-3, "cpu": 2e-2}
"""Against stored logits of whole models, which were computed in float32."""
GOLDEN_MARGIN = {"reference": 1e-3, "cpu": 0.02}
"""A smaller lead of the best logit over the second decides nothing, in the small checkpoints."""
OUTLIER_LOGITS = {"tiny-qwen2-outliers-awq-g128": 6e-2, "tiny-qwen2-outliers-fp16-v4": 6e-3}
"""Bounds of ‖Δlogits‖ / ‖logits‖ of a sequence by checkpoint, where one gate's row is a hundred times the others' and activations are
float16, the type that all of them share on a GPU. One token of five has a gate of -5.3 whose terms are of size 158: half
an ulp of each input moves it by 0.2, SiLU by a fifth, and what is left of the sequence by hundredths. Measured in the
reference with float16 activations, 100 draws: 4.5e-2 at most, exact weights or weights rounded to float16 alike (with
exact ones half of all tokens are nearer than 1.2e-3, with rounded ones 1.4e-3); with float32 activations 6e-5. The other
has outliers without such a gate: 3.7e-3 at most."""
SMOLLM2_FORCED_MARGIN = 0.02
SMOLLM2_FREE_MARGIN = 0.05
"""The same for the built-in model, given the right tokens so far or its own."""

SUM = "float32 sums round with their terms: measured 40 half-ulps of the row's largest value at most"
CHAIN = "a chain of float32 ops, each about as far off as one sum"

TOLERANCES = {
    ("copy", "float64"): Tolerance(0, 0, "moves values, computes nothing"),
    ("rms_norm", "float64"): Tolerance(
        1.01 * ULP, 0, "one rounding: the sum is of squares, so it cannot cancel"
    ),
    ("linear", "float64"): Tolerance(1.01 * ULP, 1e-11, "one rounding; float64 sums may cancel"),
    ("rope", "float64"): Tolerance(1.01 * ULP, 1e-14, "one rounding; a sum of two products may cancel"),
    ("silu_mul", "float64"): Tolerance(1.01 * ULP, 0, "one rounding"),
    ("add_into", "float64"): Tolerance(1.01 * ULP, 0, "one float32 addition"),
    ("attention", "float64"): Tolerance(1.01 * ULP, 1e-10, "one rounding; a weighted mean may cancel"),
    ("score", "float64"): Tolerance(1.01 * ULP, 0, "one rounding"),
    ("copy", "float32"): Tolerance(0, 0, "moves values, computes nothing"),
    ("rms_norm", "float32"): Tolerance(16 * ULP, 0, "a float32 sum of squares, a root and two products"),
    ("linear", "float32"): Tolerance(0, 160 * ULP, SUM),
    ("rope", "float32"): Tolerance(0, 8 * ULP, "two products and a sum that may cancel"),
    ("silu_mul", "float32"): Tolerance(
        16 * ULP, 2**-60, "one exp and a quotient; tiny results may become zero"
    ),
    ("add_into", "float32"): Tolerance(1.01 * ULP, 0, "one float32 addition"),
    ("attention", "float32"): Tolerance(
        0, 80 * ULP, "exps of float32 scores, then a weighted mean that may cancel"
    ),
    ("score", "float32"): Tolerance(8 * ULP, 4 * ULP, "a logarithm of a long sum"),
    ("norm_qkv_rope_store", "float32"): Tolerance(0, 80 * ULP, CHAIN),
    ("attend", "float32"): Tolerance(0, 160 * ULP, CHAIN),
    ("project_add", "float32"): Tolerance(0, 80 * ULP, CHAIN),
    ("norm_gate_up", "float32"): Tolerance(0, 80 * ULP, CHAIN),
    ("head", "float32"): Tolerance(0, 80 * ULP, CHAIN),
    ("decoder", "float32"): Tolerance(0, 320 * ULP, "all of it, layer after layer"),
}


def token_errors(found: NDArray[np.generic], right: NDArray[np.generic]) -> NDArray[np.float64]:
    """‖found − right‖ / ‖right‖ of each row: (T, V) logits → (T,)."""
    wide = right.astype(np.float64)
    return np.asarray(np.linalg.norm(found.astype(np.float64) - wide, axis=1) / np.linalg.norm(wide, axis=1))


def assert_close(
    op: str,
    backend: str,
    got: NDArray[np.generic],
    wanted: NDArray[np.generic],
    terms: NDArray[np.float64] | None = None,
) -> None:
    """Fail with op, shapes, the worst coordinate and both values there.

    `terms`, if given, says how large the terms of each sum were together; else the greatest value of a row
    stands for it, which is of no use where a row is so short that all of it may cancel.
    """
    tolerance = TOLERANCES[op, ARITHMETIC[backend]]
    assert got.shape == wanted.shape, f"{op}: shape {got.shape}, wanted {wanted.shape}"
    exact = wanted.astype(np.float64)
    scale = np.abs(exact).max(axis=-1, keepdims=True, initial=0) if terms is None else terms
    allowed = tolerance.relative * np.abs(exact) + tolerance.row * scale
    error = np.abs(got.astype(np.float64) - exact)
    # Written so that a NaN counts as an error.
    bad = ~(error <= allowed)
    if bad.any():
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(bad, np.nan_to_num(error / allowed, nan=np.inf), -1.0)
        at = tuple(int(i) for i in np.unravel_index(np.argmax(share), got.shape))
        raise AssertionError(
            f"{op} on {backend} {got.dtype}{got.shape}: {int(bad.sum())} of {got.size} values off, worst at {at}: "
            f"{got[at]!r}, wanted {exact[at]!r}, allowed error {allowed[at]:.3g} ({tolerance.reason})"
        )
