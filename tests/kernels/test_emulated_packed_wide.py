"""4-bit products of some tokens, run on the CPU from their CUDA source, against float64: slices, turns, odd shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from llmrs_cli.kernels import packed_wide
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.norm_ahead import Ahead
from llmrs_cli.kernels.packed_wide_plans import PackedWidePlan
from tests.helpers.emulate import EmulatedDevice, host
from tests.helpers.launches import tensor_map
from tests.kernels.test_packed_linear import EXACT, Case, error, poisoned, rounding


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> EmulatedDevice:
    return EmulatedDevice(tmp_path_factory.mktemp("emulated"), hopper=True, together=True)


@pytest.fixture(autouse=True)
def plain_map(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(packed_wide, "tensor_map", tensor_map)
    yield


def product(
    gpu: EmulatedDevice, case: Case, plan: PackedWidePlan, epilogue: Epilogue, alpha: float = 1.0
) -> Any:
    wide = epilogue in ("add", "logits")
    out = poisoned(case.m, case.n // 2 if epilogue == "silu" else case.n, wide=wide)
    if epilogue == "add":
        out[...] = 0
    packed_wide.packed_wide(
        gpu, case.bf16, plan, epilogue, case.weight, out, x=case.x, bias=case.bias, alpha=alpha
    )
    return out


ALONE = PackedWidePlan(2, 16, 2)
"""Two blocks that take turns at what one cannot hold."""
SLICED = PackedWidePlan(6, 32, 1, 2)
"""Three clusters of two: eight tiles are one for each block, and two that are shared; four are shared in two turns."""


@pytest.mark.parametrize("plan", [ALONE, SLICED], ids=["alone", "sliced"])
@pytest.mark.parametrize("epilogue", ["store", "add", "silu", "logits"])
def test_every_epilogue(gpu: EmulatedDevice, plan: PackedWidePlan, epilogue: Epilogue) -> None:
    case = Case(False, 35, 208, 648, 128)
    case.check(epilogue, product(gpu, case, plan, epilogue))


@pytest.mark.parametrize(
    ("m", "n", "k", "group", "plan"),
    [
        (4, 16, 128, 128, PackedWidePlan(1, 16, 2)),
        (9, 16, 128, 128, PackedWidePlan(1, 16, 2)),
        (16, 336, 1032, 32, PackedWidePlan(6, 16, 2, 3)),
        (97, 80, 456, 64, PackedWidePlan(2, 96, 1, 2)),
        (40, 640, 200, 200, PackedWidePlan(3, 16, 3)),
        (33, 64, 1160, 128, PackedWidePlan(4, 64, 1, 4)),
    ],
    ids=str,
)
def test_tokens_and_matrices_of_any_shape(
    gpu: EmulatedDevice, m: int, n: int, k: int, group: int, plan: PackedWidePlan
) -> None:
    """Warpgroups without rows, columns and tokens that fill no tile, slices of unequal length."""
    case = Case(m % 2 == 0, m, n, k, group)
    case.check("logits", product(gpu, case, plan, "logits"))


LARGE = PackedWidePlan(3, 32, 3)


@pytest.mark.parametrize(
    ("m", "adding", "bf16"),
    [(35, ALONE, False), (4, ALONE, False), (20, SLICED, True), (70, LARGE, False)],
    ids=str,
)
def test_a_norm_between_two_products_needs_no_kernel(
    gpu: EmulatedDevice, m: int, adding: PackedWidePlan, bf16: bool
) -> None:
    """Whatever plans the two have; tokens that fill no tile, an odd number of sums of squares."""
    n, eps, rng = 208, 1e-6, np.random.default_rng(m)
    first, last = Case(bf16, m, n, 392, 128), Case(bf16, m, 80, n, 64)
    before = rng.standard_normal((m, n)).astype(np.float32) * 30
    norm = rng.uniform(0.5, 2, n).astype(np.float32)
    left = Ahead(
        host(norm), host(np.full((m, n), 0x7FFF, np.uint16)), host(np.full((m, 16), np.nan, np.float32)), 13
    )
    residual, out = host(before), host(np.full((m, 80), np.nan, np.float32))
    packed_wide.packed_wide(
        gpu, bf16, adding, "add", first.weight, residual, x=first.x, bias=first.bias, leaves=left
    )
    packed_wide.packed_wide(
        gpu, bf16, PackedWidePlan(2, 16, 2), "logits", last.weight, out, x=left.values, bias=last.bias,
        alpha=0.5, ahead=left, eps=eps,
    )  # fmt: skip
    added = before + first.product + first.bias
    assert error(residual, added) < EXACT
    normed = added / np.sqrt((added**2).mean(axis=1, keepdims=True) + eps) * norm
    wanted = 0.5 * normed @ last.w.dequantise().T.astype(np.float64) + last.bias
    assert error(out, wanted) < 2 * rounding(bf16)


@pytest.mark.parametrize("early", [1, 2])
def test_no_bit_depends_on_what_is_asked_for_before_the_wait(
    gpu: EmulatedDevice, early: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(True, 19, 80, 1160, 128)
    usual = product(gpu, case, ALONE, "logits")
    monkeypatch.setattr(packed_wide, "EARLY", early)
    assert np.array_equal(product(gpu, case, ALONE, "logits"), usual)


def test_the_order_of_threads_changes_nothing(gpu: EmulatedDevice) -> None:
    case = Case(False, 20, 208, 648, 128)
    first, *others = (product(gpu, case, SLICED, "logits") for _ in range(3))
    for again in others:
        assert np.array_equal(first, again)


def test_the_sum_is_scaled_before_its_bias(gpu: EmulatedDevice) -> None:
    case = Case(False, 12, 64, 256, 128)
    plain, half = (product(gpu, case, ALONE, "logits", alpha) for alpha in (1.0, 0.5))
    np.testing.assert_allclose(half - case.bias, (plain - case.bias) / 2, rtol=1e-5, atol=1e-4)
