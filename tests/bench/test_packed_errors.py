"""What rounding costs 4-bit products: the figures that stand beside those of kernels with exact codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.packed_errors import KERNELS, Packed, error, narrow, rounding_errors
from tests.helpers.canonical import packed4

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
GROUP = 128
EXACT = 2e-5
"""Of float32 sums over exact codes."""
BOUND = {True: 2.5e-3, False: 3.5e-4}
"""By bf16: of weights rounded once."""


@pytest.fixture(scope="module")
def weight() -> Packed:
    stored = packed4(np.random.default_rng(0), 192, 1024, GROUP)
    assert stored.zeros is not None
    codes = np.stack([stored.codes & 15, stored.codes >> 4], axis=-1).reshape(192, -1).astype(np.float64)
    made = Packed(codes - np.repeat(stored.zeros, GROUP, axis=1), stored.scales.astype(np.float64))
    np.testing.assert_allclose(made.values(), stored.dequantise(), rtol=1e-6)
    return made


@pytest.mark.parametrize("bf16", [True, False])
@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_rounding_weights_costs_far_more_than_float32_sums_do(
    weight: Packed, bf16: bool, mean: float
) -> None:
    x = narrow(np.random.default_rng(1).standard_normal((16, 1024)) + mean, bf16)
    errors = rounding_errors(weight, x, bf16)
    single = x.astype(np.float32) @ weight.values().astype(np.float32).T
    assert error(single, x @ weight.values().T) < 2e-6
    assert 3e-5 < errors["code_times_scale_rounded"] < BOUND[bf16]


def test_scales_in_bfloat16_cost_more_than_weights_rounded_once(weight: Packed) -> None:
    x = narrow(np.random.default_rng(2).standard_normal((16, 1024)), True)
    errors = rounding_errors(weight, x, True)
    assert errors["scale_rounded_before"] > 1.2 * errors["code_times_scale_rounded"]


def test_scales_that_are_float16_already_are_rounded_once(weight: Packed) -> None:
    assert (weight.rounded_twice(False) == weight.rounded(False)).all()


def test_recorded_errors_of_our_kernels_keep_their_bounds_and_stand_beside_marlins() -> None:
    found = json.loads((BENCHMARKS / "packed-errors.json").read_text())["errors"]
    seen = {(record["kernel"], record["m"], record["type"], record["mean"]) for record in found}
    tokens = {(name, m) for name, counts in KERNELS.items() for m in counts}
    assert seen == {(*kernel, kind, mean) for kernel in tokens for kind in ("bf16", "f16") for mean in (0, 1)}
    for record in found:
        bf16 = record["type"] == "bf16"
        assert record["error"] < (BOUND[bf16] if record["kernel"] == "packed_many" else EXACT), record
        assert record["scale_rounded_before"] >= (1.2 if bf16 else 1) * record["code_times_scale_rounded"]
