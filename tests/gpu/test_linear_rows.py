"""linear_rows.cu against float64: one and two tokens, odd shapes, every prologue and epilogue."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.linear_rows import RowsPlan, default_plan, linear_rows, shared_bytes
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.silu_mul import headroom
from tests.gpu.halves import TYPES, cp, error, halves, in_turns, rounding, widened

SHAPES = [
    (512, 96),
    (4608, 3584),
    (1000, 576),
    (8, 128),
    (896, 4864),
    (321, 1032),
    (64, 18944),
    (3584, 18944),
]


def plans(device: CudaDevice, n: int, k: int) -> list[RowsPlan]:
    own = default_plan(n, k, device.multiprocessors)
    found = [own, default_plan(n, k, 2 * device.multiprocessors, warps=8), RowsPlan(1, 16, depth=6)]
    return [plan for plan in found if shared_bytes(plan, 2, n, k) <= device.shared_limit]


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("m", [1, 2])
def test_plain_linear_is_the_product(device: CudaDevice, bf16: bool, n: int, k: int, m: int) -> None:
    rng = np.random.default_rng(n + k + m)
    w, w64 = halves(rng.standard_normal((n, k)) / 32, bf16)
    x, x64 = halves(rng.standard_normal((m, k)), bf16)
    bias = rng.standard_normal(n).astype(np.float32)
    residual = rng.standard_normal((m, n)).astype(np.float32)
    wanted = x64 @ w64.T + bias
    for plan in plans(device, n, k)[: 2 if n > 1000 else 3]:
        stored = cp.full((m, n), 0x7FC0, cp.uint16)
        linear_rows(device, bf16, plan, "store", w, stored, x=x, bias=cp.asarray(bias))
        assert error(widened(stored, bf16), wanted) < rounding(bf16)
        logits = cp.full((m, n), np.nan, cp.float32)
        linear_rows(device, bf16, plan, "logits", w, logits, x=x, bias=cp.asarray(bias))
        assert error(cp.asnumpy(logits), wanted) < 1e-5
        added = cp.asarray(residual)
        linear_rows(device, bf16, plan, "add", w, added, x=x, bias=cp.asarray(bias), alpha=3.0)
        assert error(cp.asnumpy(added), 3 * wanted - 2 * bias + residual) < 1e-5


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize("epilogue", ["store", "silu", "logits"])
@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize(("n", "k"), [(384, 96), (1920, 896), (18944, 3584)])
def test_norm_comes_first(device: CudaDevice, bf16: bool, epilogue: Epilogue, m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(m + k)
    stacked = rng.standard_normal((2 * n if epilogue == "silu" else n, k)) / 16
    _, w64 = halves(stacked, bf16)
    w, _ = halves(in_turns(stacked) if epilogue == "silu" else stacked, bf16)
    residual = rng.standard_normal((m, k)).astype(np.float32) * 3
    gamma = rng.standard_normal(k).astype(np.float32)
    picked = residual.astype(np.float64)
    normed = picked / np.sqrt((picked**2).mean(axis=1, keepdims=True) + 1e-6) * gamma
    wanted: Any = normed @ w64.T
    if epilogue == "silu":
        gate, up = np.split(wanted, 2, axis=1)
        wanted = gate / (1 + np.exp(-gate)) * up * headroom(bf16)
    for plan in plans(device, *w.shape)[:2]:
        out = cp.zeros((m, n), cp.float32 if epilogue == "logits" else cp.uint16)
        linear_rows(
            device, bf16, plan, epilogue, w, out, residual=cp.asarray(residual), norm=cp.asarray(gamma), eps=1e-6,
        )  # fmt: skip
        found = cp.asnumpy(out) if epilogue == "logits" else widened(out, bf16)
        assert error(found, wanted) < 2 * rounding(bf16)
