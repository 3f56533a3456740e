"""linear_small.cu against float64, over odd shapes, every prologue and epilogue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.linear_small import Epilogue, SmallPlan, default_plan, linear_small
from llmrs_cli.kernels.silu_mul import headroom
from tests.gpu.halves import TYPES, cp, error, halves, in_turns, rounding, widened

SHAPES = [(512, 96), (4608, 3584), (1000, 576), (8, 128), (896, 4864), (321, 1032), (64, 18944)]
"""(N, K): K that is no multiple of 32 or 128, N that is no multiple of 8, fewer rows than blocks."""


def plan_for(device: CudaDevice, n: int, k: int, held: int = 1) -> SmallPlan:
    return replace(default_plan(n, k, device.multiprocessors, device.shared_limit), held=held)


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("m", [1, 3, 8, 9, 16])
def test_plain_linear_is_the_product(device: CudaDevice, bf16: bool, n: int, k: int, m: int) -> None:
    rng = np.random.default_rng(n + k + m)
    w, w64 = halves(rng.standard_normal((n, k)) / 32, bf16)
    x, x64 = halves(rng.standard_normal((m, k)), bf16)
    bias = rng.standard_normal(n).astype(np.float32)
    residual = rng.standard_normal((m, n)).astype(np.float32)
    wanted = x64 @ w64.T + bias
    plan = plan_for(device, n, k)

    stored = cp.full((m, n), 0x7FC0, cp.uint16)
    linear_small(device, bf16, plan, "store", w, stored, x=x, bias=cp.asarray(bias))
    assert error(widened(stored, bf16), wanted) < rounding(bf16)

    logits = cp.full((m, n), np.nan, cp.float32)
    linear_small(device, bf16, plan, "logits", w, logits, x=x, bias=cp.asarray(bias))
    assert error(cp.asnumpy(logits), wanted) < 1e-5

    added = cp.asarray(residual)
    linear_small(device, bf16, plan, "add", w, added, x=x, bias=cp.asarray(bias), alpha=3.0)
    assert error(cp.asnumpy(added), 3 * wanted - 2 * bias + residual) < 1e-5


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize(("f", "k"), [(256, 96), (18944, 3584), (336, 576)])
@pytest.mark.parametrize("m", [1, 5, 8, 16])
def test_gate_and_up_are_paired(device: CudaDevice, bf16: bool, f: int, k: int, m: int) -> None:
    rng = np.random.default_rng(f + k + m)
    stacked = rng.standard_normal((2 * f, k)) / 16
    _, w64 = halves(stacked, bf16)
    w, _ = halves(in_turns(stacked), bf16)
    x, x64 = halves(rng.standard_normal((m, k)), bf16)
    gate, up = np.split(x64 @ w64.T, 2, axis=1)
    out = cp.full((m, f), 0x7FC0, cp.uint16)
    linear_small(device, bf16, plan_for(device, 2 * f, k), "silu", w, out, x=x)
    assert error(widened(out, bf16) / headroom(bf16), gate / (1 + np.exp(-gate)) * up) < rounding(bf16)


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize("epilogue", ["store", "silu", "logits"])
@pytest.mark.parametrize("m", [1, 2, 8])
@pytest.mark.parametrize("k", [96, 896, 3584])
def test_norm_comes_first(device: CudaDevice, bf16: bool, epilogue: Epilogue, m: int, k: int) -> None:
    rng = np.random.default_rng(m + k)
    n = 384
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
    out = cp.zeros((m, n), cp.float32 if epilogue == "logits" else cp.uint16)
    linear_small(
        device, bf16, plan_for(device, n, k), epilogue, w, out,
        residual=cp.asarray(residual), norm=cp.asarray(gamma), eps=1e-6,
    )  # fmt: skip
    found = cp.asnumpy(out) if epilogue == "logits" else widened(out, bf16)
    assert error(found, wanted) < 2 * rounding(bf16)


def test_a_token_does_not_depend_on_its_neighbours(device: CudaDevice) -> None:
    rng = np.random.default_rng(0)
    n, k = 700, 1000
    w, _ = halves(rng.standard_normal((n, k)), True)
    x, _ = halves(rng.standard_normal((8, k)), True)
    plan = plan_for(device, n, k)
    together, alone = cp.zeros((8, n), cp.float32), cp.zeros((1, n), cp.float32)
    linear_small(device, True, plan, "logits", w, together, x=x)
    linear_small(device, True, plan, "logits", w, alone, x=cp.ascontiguousarray(x[5:6]))
    assert (together[5] == alone[0]).all()


@pytest.mark.parametrize("m", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("blocks", [1, 5, 132])
def test_sums_that_wait_are_the_same_sums(device: CudaDevice, m: int, blocks: int) -> None:
    rng = np.random.default_rng(m)
    n, k = 5008, 520
    w, _ = halves(rng.standard_normal((n, k)), True)
    x, _ = halves(rng.standard_normal((m, k)), True)
    found = []
    for held in (1, 3, 8):
        out = cp.full((m, n), np.nan, cp.float32)
        plan = replace(plan_for(device, n, k, held), blocks=blocks)
        linear_small(device, True, plan, "logits", w, out, x=x)
        found.append(out)
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()


def test_float16_saturates(device: CudaDevice) -> None:
    w, _ = halves(np.full((8, 64), 1000.0), False)
    x, _ = halves(np.full((1, 64), 1000.0), False)
    out = cp.zeros((1, 8), cp.uint16)
    linear_small(device, False, plan_for(device, 8, 64), "store", w, out, x=x)
    assert (widened(out, False) == 65504).all()
