"""4-bit products of 4 to 256 tokens with wgmma and bulk copies against float64: every epilogue, odd shapes, all kinds of plans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.norm_ahead import Ahead
from llmrs_cli.kernels.packed_wide import packed_wide, unit
from llmrs_cli.kernels.packed_wide_plans import MOST_WARPGROUPS, PackedWidePlan, plan_for
from llmrs_cli.kernels.silu_mul import headroom
from llmrs_cli.kernels.wide_plans import at_once
from tests.gpu.halves import TYPES, cp, error, rounding, widened
from tests.gpu.test_packed import EXACT, Case

SHAPES = [
    (4608, 3584, 128), (896, 4864, 128), (64, 18944, 128), (576, 576, 64), (208, 1032, 32), (16, 128, 128),
    (1008, 200, 200), (48, 64, 32),
]  # fmt: skip
"""(N, K, G): K that is no multiple of 128, N that is no multiple of 64, one step of columns, one group."""
SIZES = (4, 9, 17, 63, 64, 65, 128, 130, 256)


@pytest.fixture(autouse=True)
def only_hopper(device: CudaDevice) -> None:
    if device.loader.arch != "sm_90a":
        pytest.skip(reason="this kernel is for Hopper")


def chosen(device: CudaDevice, case: Case, m: int) -> PackedWidePlan:
    plan = plan_for(m, case.matrix.layout, device.multiprocessors)
    assert plan is not None
    return plan


def build(
    device: CudaDevice,
    bf16: bool,
    case: Case,
    *plans: PackedWidePlan,
    after: Any = ("logits", "add", "store"),
) -> None:
    """All kernels of a test at once, in parallel."""
    units = (unit(bf16, case.matrix.layout, plan, epilogue) for plan in plans for epilogue in after)
    device.build(tuple(dict.fromkeys(units)))


def run(
    device: CudaDevice,
    bf16: bool,
    case: Case,
    epilogue: Epilogue,
    out: Any,
    x: Any,
    bias: Any = None,
    plan: PackedWidePlan | None = None,
    alpha: float = 1.0,
) -> None:
    """With the plan that is chosen, if none is given."""
    plan = plan or chosen(device, case, len(x))
    packed_wide(device, bf16, plan, epilogue, case.matrix, out, x=x, bias=bias, alpha=alpha)


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize(("n", "k", "group"), SHAPES)
def test_products_are_exact_to_float32(device: CudaDevice, bf16: bool, n: int, k: int, group: int) -> None:
    case = Case(n, k, group)
    bias = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    build(device, bf16, case, *(chosen(device, case, m) for m in SIZES))
    for m in SIZES:
        x, x64 = case.x(m, bf16)
        wanted = x64 @ case.values.T
        logits = cp.full((m + 1, n), np.nan, cp.float32)
        run(device, bf16, case, "logits", logits[:m], x, cp.asarray(bias), alpha=0.5)
        assert error(cp.asnumpy(logits[:m]), wanted / 2 + bias) < EXACT, f"{m} tokens"
        added = cp.ones((m + 1, n), cp.float32)
        run(device, bf16, case, "add", added[:m], x, cp.asarray(bias))
        assert error(cp.asnumpy(added[:m]), wanted + bias + 1) < EXACT, f"{m} tokens"
        stored = cp.full((m + 1, n), 0x7FFF, cp.uint16)
        run(device, bf16, case, "store", stored[:m], x)
        assert error(widened(stored[:m], bf16), wanted) < rounding(bf16), f"{m} tokens"
        assert cp.isnan(logits[m]).all() and (added[m] == 1).all() and (stored[m] == 0x7FFF).all()


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize("m", [4, 9, 40, 64, 128, 200])
def test_gate_and_up_are_paired(device: CudaDevice, bf16: bool, m: int) -> None:
    case = Case(9728, 896, 128)
    bias = np.random.default_rng(m).standard_normal(9728).astype(np.float32)
    x, x64 = case.x(m, bf16)
    pairs = (x64 @ case.values.T + bias).reshape(m, -1, 2, 8)
    gate, up = (pairs[:, :, i].reshape(m, -1) for i in (0, 1))
    out = cp.full((m + 1, 4864), 0x7FFF, cp.uint16)
    run(device, bf16, case, "silu", out[:m], x, cp.asarray(bias))
    wanted = gate / (1 + np.exp(-gate)) * up
    assert error(widened(out[:m], bf16) / headroom(bf16), wanted) < rounding(bf16)
    assert (out[m] == 0x7FFF).all()


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize("m", [4, 9, 64, 100, 256])
def test_a_norm_between_two_products_needs_no_kernel(device: CudaDevice, bf16: bool, m: int) -> None:
    """As of a layer of Qwen2.5-7B: down, and the projection after it."""
    n, eps, rng = 3584, 1e-6, np.random.default_rng(m)
    first, last = Case(n, 2432, 128), Case(4608, n, 128)
    x, x64 = first.x(m, bf16)
    before = rng.standard_normal((m, n)).astype(np.float32) * 30
    norm = rng.uniform(0.5, 2, n).astype(np.float32)
    left = Ahead(
        cp.asarray(norm), cp.full((m, n), 0x7FFF, cp.uint16), cp.full((m, 224), np.nan, cp.float32), 224
    )
    residual, out = cp.asarray(before), cp.full((m, 4608), np.nan, cp.float32)
    packed_wide(device, bf16, chosen(device, first, m), "add", first.matrix, residual, x=x, leaves=left)
    packed_wide(
        device, bf16, chosen(device, last, m), "logits", last.matrix, out, x=left.values, ahead=left, eps=eps
    )
    added = before + x64 @ first.values.T
    assert error(cp.asnumpy(residual), added) < EXACT
    normed = added / np.sqrt((added**2).mean(axis=1, keepdims=True) + eps) * norm
    assert error(cp.asnumpy(out), normed @ last.values.T) < 2 * rounding(bf16)


@pytest.mark.parametrize("tokens", MOST_WARPGROUPS)
@pytest.mark.parametrize("slices", [1, 2, 3, 5, 8])
def test_plans_of_every_kind_agree(device: CudaDevice, tokens: int, slices: int) -> None:
    """Clusters that take turns, and clusters with one tile each; blocks of all warpgroups and of fewer."""
    case, m = Case(2032, 2312, 64), 100
    x, x64 = case.x(m, False)
    wanted = x64 @ case.values.T + 1
    plans = []
    for warpgroups in range(1, MOST_WARPGROUPS[tokens] + 1):
        tiles = PackedWidePlan(0, tokens, warpgroups, slices).tiles(case.matrix.layout, m)
        most = min(tiles, at_once(slices, device.multiprocessors) // slices)
        plans += [
            PackedWidePlan(count * slices, tokens, warpgroups, slices) for count in {most, max(most // 3, 1)}
        ]
    build(device, False, case, *plans, after=("add",))
    for plan in plans:
        out = cp.ones((m, 2032), cp.float32)
        run(device, False, case, "add", out, x, plan=plan)
        assert error(cp.asnumpy(out), wanted) < EXACT, plan


@pytest.mark.parametrize(("n", "k"), [(3584, 18944), (37888, 3584)])
def test_a_result_does_not_depend_on_time(device: CudaDevice, n: int, k: int) -> None:
    case = Case(n, k, 128)
    x, _ = case.x(64, False)
    first, *others = (cp.zeros((64, n), cp.float32) for _ in range(20))
    run(device, False, case, "logits", first, x)
    for again in others:
        run(device, False, case, "logits", again, x)
        assert (again == first).all()


def test_kernels_in_a_row_wait_for_each_other(device: CudaDevice) -> None:
    """Each adds to what the one before has left, and reads what it has stored."""
    case, m = Case(3584, 3584, 128), 64
    x, x64 = case.x(m, False)
    total = cp.zeros((m, 3584), cp.float32)
    for _ in range(50):
        run(device, False, case, "add", total, x)
    assert error(cp.asnumpy(total), 50 * (x64 @ case.values.T)) < 10 * EXACT
