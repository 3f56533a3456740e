"""Kernels of few tokens, run on the CPU from their CUDA source, against float64: every prologue and epilogue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import bf16_to_f32, f32_to_bf16
from llmrs_cli.kernels import linear_rows, linear_small
from llmrs_cli.kernels.silu_mul import headroom
from tests.helpers.emulate import EmulatedDevice, host

Product = Callable[..., None]


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> EmulatedDevice:
    return EmulatedDevice(tmp_path_factory.mktemp("emulated"))


def rows_product(gpu: EmulatedDevice, n: int, k: int, m: int) -> Product:
    plan = linear_rows.default_plan(n, k, 3, warps=4, depth=3)
    return lambda *args, **more: linear_rows.linear_rows(gpu, True, plan, *args, **more)


def small_product(gpu: EmulatedDevice, n: int, k: int, m: int) -> Product:
    blocks, split = min(3, -(-n // 8)), 4 if k >= 256 else 1
    plan = linear_small.SmallPlan(blocks, split, warps=4, tiles=1, depth=3, resident=1, held=3)
    return lambda *args, **more: linear_small.linear_small(gpu, True, plan, *args, **more)


MAKERS = {"rows": rows_product, "small": small_product}
CASES = [
    (kind, n, k, m)
    for kind, sizes in (("rows", (1, 2)), ("small", (1, 8)))
    for n, k in ((48, 264), (161, 96), (16, 24), (640, 40), (16, 2640))
    for m in sizes
]


def bits(values: NDArray[Any]) -> tuple[Any, NDArray[np.float64]]:
    narrow = f32_to_bf16(values.astype(np.float32))
    return host(narrow), bf16_to_f32(narrow).astype(np.float64)


def error(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize(("kind", "n", "k", "m"), CASES)
def test_every_epilogue(gpu: EmulatedDevice, kind: str, n: int, k: int, m: int) -> None:
    rng = np.random.default_rng(n + k + m)
    product = MAKERS[kind](gpu, n, k, m)
    w, w64 = bits(rng.standard_normal((n, k)))
    x, x64 = bits(rng.standard_normal((m, k)))
    bias = rng.standard_normal(n).astype(np.float32)
    wanted = x64 @ w64.T

    logits = host(np.full((m, n), np.nan, np.float32))
    product("logits", w, logits, x=x, alpha=0.5)
    assert error(logits, wanted / 2) < 1e-6

    stored = host(np.full((m, n), 0x7FC0, np.uint16))
    product("store", w, stored, x=x, bias=host(bias))
    assert error(bf16_to_f32(np.asarray(stored)), wanted + bias) < 4e-3

    residual = rng.standard_normal((m, n)).astype(np.float32)
    added = host(residual)
    product("add", w, added, x=x, bias=host(bias))
    assert error(added, wanted + bias + residual) < 1e-6


@pytest.mark.parametrize(("kind", "n", "k", "m"), [case for case in CASES if case[1] % 16 == 0])
def test_the_norm_and_the_gate(gpu: EmulatedDevice, kind: str, n: int, k: int, m: int) -> None:
    rng = np.random.default_rng(n + k + m)
    product = MAKERS[kind](gpu, n, k, m)
    w, w64 = bits(rng.standard_normal((n, k)) / 8)
    residual = rng.standard_normal((m, k)).astype(np.float32)
    gamma = rng.standard_normal(k).astype(np.float32)
    picked = residual.astype(np.float64)
    normed = picked / np.sqrt((picked**2).mean(axis=1, keepdims=True) + 1e-6) * gamma
    source = {"residual": host(residual), "norm": host(gamma), "eps": 1e-6}

    logits = host(np.full((m, n), np.nan, np.float32))
    product("logits", w, logits, **source)
    assert error(logits, normed @ w64.T) < 4e-3

    out = host(np.full((m, n // 2), 0x7FC0, np.uint16))
    product("silu", w, out, **source)
    gate, up = np.moveaxis((normed @ w64.T).reshape(m, -1, 2, 8), 2, 0)
    wanted = (gate / (1 + np.exp(-gate)) * up * headroom(True)).reshape(m, -1)
    assert error(bf16_to_f32(np.asarray(out)), wanted) < 1e-2


@pytest.mark.parametrize("kind", MAKERS)
def test_no_bit_depends_on_what_is_asked_for_before_the_wait(
    gpu: EmulatedDevice, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, k, rng = 48, 800, np.random.default_rng(1)
    product = MAKERS[kind](gpu, n, k, 1)
    (w, _), (x, _) = bits(rng.standard_normal((n, k))), bits(rng.standard_normal((1, k)))
    norm, residual = (host(rng.standard_normal(shape).astype(np.float32)) for shape in (k, (1, k)))
    found = []
    for early in range(4):
        for module in (linear_rows, linear_small):
            monkeypatch.setattr(module, "early_steps", lambda *_, early=early: early)
        plain, normed = (host(np.full((1, n), np.nan, np.float32)) for _ in range(2))
        product("logits", w, plain, x=x)
        product("logits", w, normed, residual=residual, norm=norm, eps=1e-6)
        found.append((plain.tobytes(), normed.tobytes()))
    assert len(set(found)) == 1 and not np.isnan(plain).any()
