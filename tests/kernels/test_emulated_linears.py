"""Kernels of few tokens, run on the CPU from their CUDA source, against float64: every prologue and epilogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import bf16_to_f32, f32_to_bf16
from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels import linear_rows, linear_small
from llmrs_cli.kernels.silu_mul import headroom
from tests.helpers.emulate import EmulatedDevice, host

Product = Callable[..., None]


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> EmulatedDevice:
    return EmulatedDevice(tmp_path_factory.mktemp("emulated"))


def by_rows(gpu: EmulatedDevice, n: int, k: int, bf16: bool = True, **changes: Any) -> Product:
    plan = replace(linear_rows.default_plan(n, k, 3, warps=4, depth=3), **changes)
    return lambda *args, **more: linear_rows.linear_rows(gpu, bf16, plan, *args, **more)


def by_tiles(gpu: EmulatedDevice, n: int, k: int, bf16: bool = True, **changes: Any) -> Product:
    blocks, split = min(3, -(-n // 8)), 4 if k >= 256 else 1
    plan = linear_small.SmallPlan(blocks, split, warps=4, tiles=1, depth=3, resident=1, held=3)
    return lambda *args, **more: linear_small.linear_small(gpu, bf16, replace(plan, **changes), *args, **more)


MAKERS: dict[str, Callable[..., Product]] = {
    "rows": by_rows,
    "small": by_tiles,
    "tall": partial(by_tiles, tiles=2, depth=4),
}
SHAPES = [(48, 264), (161, 96), (16, 24), (640, 40), (16, 2640)]
CASES = [
    *(("rows", n, k, m) for n, k in SHAPES for m in (1, 2)),
    *((kind, n, k, m) for kind in ("small", "tall") for n, k in SHAPES for m in (1, 8)),
    ("small", 40, 4104, 3),
    ("small", 100, 72, 16),
    ("tall", 56, 4096, 7),
]
"""Weights of odd sizes, in fewer and more turns than wait."""


def bits(values: NDArray[Any], bf16: bool = True) -> tuple[Any, NDArray[np.float64]]:
    wide = values.astype(np.float32)
    narrow = f32_to_bf16(wide) if bf16 else wide.astype(np.float16).view(np.uint16)
    return host(narrow), (bf16_to_f32(narrow) if bf16 else narrow.view(np.float16)).astype(np.float64)


def error(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize(("kind", "n", "k", "m"), CASES)
def test_every_epilogue(gpu: EmulatedDevice, kind: str, n: int, k: int, m: int) -> None:
    rng = np.random.default_rng(n + k + m)
    product = MAKERS[kind](gpu, n, k)
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


@pytest.mark.parametrize(
    ("kind", "n", "k", "m"), [case for case in CASES if case[1] % 16 == 0 and case[3] <= 8]
)
def test_the_norm_and_the_gate(gpu: EmulatedDevice, kind: str, n: int, k: int, m: int) -> None:
    rng = np.random.default_rng(n + k + m)
    product = MAKERS[kind](gpu, n, k)
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
    (w, _), (x, _) = bits(rng.standard_normal((n, k))), bits(rng.standard_normal((1, k)))
    norm, residual = (host(rng.standard_normal(shape).astype(np.float32)) for shape in (k, (1, k)))
    found = []
    for early in range(4):
        for module in (linear_rows, linear_small):
            monkeypatch.setattr(module, "early_steps", lambda *_, early=early: early)
        product = MAKERS[kind](gpu, n, k)
        plain, normed = (host(np.full((1, n), np.nan, np.float32)) for _ in range(2))
        product("logits", w, plain, x=x)
        product("logits", w, normed, residual=residual, norm=norm, eps=1e-6)
        found.append((plain.tobytes(), normed.tobytes()))
    assert len(set(found)) == 1 and not np.isnan(plain).any()


@pytest.mark.parametrize(("n", "k", "m"), [(48, 520, 3), (24, 8200, 3)])
def test_no_bit_depends_on_how_many_steps_are_on_their_way_nor_on_other_tokens(
    gpu: EmulatedDevice, n: int, k: int, m: int
) -> None:
    rng = np.random.default_rng(n)
    for bf16 in (True, False):
        w, w64 = bits(rng.standard_normal((n, k)), bf16)
        x, x64 = bits(rng.standard_normal((m, k)), bf16)
        found = []
        for depth in (2, 3, 8):
            out = host(np.full((m, n), np.nan, np.float32))
            by_tiles(gpu, n, k, bf16, depth=depth)("logits", w, out, x=x)
            found.append(out.tobytes())
        alone = host(np.full((1, n), np.nan, np.float32))
        by_tiles(gpu, n, k, bf16)("logits", w, alone, x=host(x[1:2]))
        assert error(out, x64 @ w64.T) < 1e-6 and len(set(found)) == 1 and np.array_equal(alone[0], out[1])


def test_rows_that_too_few_warps_would_add_up_are_refused(gpu: EmulatedDevice) -> None:
    (w, _), (x, _) = bits(np.ones((48, 40))), bits(np.ones((1, 40)))
    product = by_tiles(gpu, 48, 40, tiles=4)
    with pytest.raises(EngineFault, match="too few warps along K to add up 64 rows"):
        product("logits", w, host(np.zeros((1, 48), np.float32)), x=x)
