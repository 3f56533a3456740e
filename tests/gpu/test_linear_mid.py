"""linear_mid.cu against float64: tiles of every size, more and fewer blocks than tiles, every epilogue."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.linear_mid import TOKENS, MidPlan, MidScratch, default_plan, linear_mid, scratch_sizes
from llmrs_cli.kernels.silu_mul import headroom
from tests.gpu.halves import TYPES, cp, error, halves, in_turns, rounding, widened

SHAPES = [(512, 96), (4608, 3584), (1000, 576), (3584, 4864), (321, 1032), (64, 18944)]


def scratch_for(plan: MidPlan, m: int, n: int) -> MidScratch:
    """Sums that nobody wrote are NaN."""
    sums, tiles = scratch_sizes(plan, m, n)
    return MidScratch(cp.full(sums, np.nan, cp.float32), cp.zeros(tiles, cp.int32))


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("m", [9, 16, 33, 64, 96, 100, 192, 256, 300])
@pytest.mark.parametrize("warps", [8, 16])
def test_product(device: CudaDevice, bf16: bool, n: int, k: int, m: int, warps: int) -> None:
    if warps == 16 and m > 128:
        pytest.skip("256 rows leave no registers for so many tokens")
    rng = np.random.default_rng(n + k + m)
    w, w64 = halves(rng.standard_normal((n, k)) / 32, bf16)
    x, x64 = halves(rng.standard_normal((m, k)), bf16)
    bias = rng.standard_normal(n).astype(np.float32)
    residual = rng.standard_normal((m, n)).astype(np.float32)
    wanted = x64 @ w64.T
    plan = default_plan(m, n, k, device.multiprocessors, warps, stages=4 if m <= 192 else 3)
    scratch = scratch_for(plan, m, n)
    run: Any = lambda epilogue, out, **more: linear_mid(  # noqa: E731
        device, bf16, plan, epilogue, w, x, out, scratch, **more
    )
    for _ in range(2):  # the second run sees what the first left behind
        stored = cp.full((m, n), 0x7FC0, cp.uint16)
        run("store", stored, bias=cp.asarray(bias))
        assert error(widened(stored, bf16), wanted + bias) < rounding(bf16)
        added = cp.asarray(residual)
        run("add", added, bias=cp.asarray(bias), alpha=3.0)
        assert error(cp.asnumpy(added), 3 * wanted + bias + residual) < 1e-5
        logits = cp.full((m, n), np.nan, cp.float32)
        run("logits", logits)
        assert error(cp.asnumpy(logits), wanted) < 1e-5
        assert not scratch.arrivals.any()


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize(("f", "k"), [(256, 96), (18944, 3584), (336, 576)])
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("blocks", [1, 7, 132])
def test_gate_and_up_are_paired(
    device: CudaDevice, bf16: bool, f: int, k: int, tokens: int, blocks: int
) -> None:
    m = tokens - 3
    if blocks < 100 and f > 1000:
        pytest.skip("slow")
    rng = np.random.default_rng(f + k + m)
    stacked = rng.standard_normal((2 * f, k)) / 16
    _, w64 = halves(stacked, bf16)
    w, _ = halves(in_turns(stacked), bf16)
    x, x64 = halves(rng.standard_normal((m, k)), bf16)
    gate, up = np.split(x64 @ w64.T, 2, axis=1)
    steps = -(-2 * f // 128) * -(-k // 64)
    plan = MidPlan(min(blocks, steps), tokens, stages=4 if tokens < 256 else 3)
    out = cp.full((m, f), 0x7FC0, cp.uint16)
    linear_mid(device, bf16, plan, "silu", w, x, out, scratch_for(plan, m, 2 * f))
    assert error(widened(out, bf16) / headroom(bf16), gate / (1 + np.exp(-gate)) * up) < rounding(bf16)


def test_a_token_does_not_depend_on_its_neighbours(device: CudaDevice) -> None:
    rng = np.random.default_rng(0)
    n, k = 4608, 3584
    w, _ = halves(rng.standard_normal((n, k)), True)
    x, _ = halves(rng.standard_normal((64, k)), True)
    plan = default_plan(64, n, k, device.multiprocessors)
    together, alone = cp.zeros((64, n), cp.float32), cp.zeros((1, n), cp.float32)
    linear_mid(device, True, plan, "logits", w, x, together, scratch_for(plan, 64, n))
    linear_mid(device, True, plan, "logits", w, cp.ascontiguousarray(x[5:6]), alone, scratch_for(plan, 1, n))
    assert (together[5] == alone[0]).all()
