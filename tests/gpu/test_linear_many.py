"""linear_many.cu against float64: odd and real shapes, every tile and epilogue. Only Hopper runs it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.qwen_shapes import linears
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.linear_many import EPILOGUES, linear_many, unit
from llmrs_cli.kernels.many_plans import KINDS, LAGS, TILES, ManyEpilogue, ManyPlan, Shared, plan_for, spread
from tests.gpu.halves import TYPES, cp, halves, widened
from tests.gpu.many_case import TOKENS, Tokens

ODD = [(16, 8), (48, 24), (80, 120), (336, 136), (1008, 904), (176, 1032)]
"""(N, K): no multiples of what a step or a tile has, less than one of either, and a little more."""
REAL = [(bf16, *linear) for bf16 in TYPES for linear in linears("0.5b") if linear[2] != "logits"]
REAL += [(True, *linear) for name in ("3b", "7b") for linear in linears(name)[:2]]


class Case:
    """Random matrices of one shape, for any number of tokens; `scale` is that of the products."""

    def __init__(self, bf16: bool, n: int, k: int, scale: float = 1.0) -> None:
        self.bf16, self.tokens = bf16, Tokens(bf16, n, k)
        rng = np.random.default_rng([n, k])
        self.weight, w64 = halves(rng.standard_normal((n, k)) * scale / k**0.5, bf16)
        self.product = self.tokens.multiplied(w64)

    def run(
        self,
        device: CudaDevice,
        plan: ManyPlan,
        epilogue: ManyEpilogue,
        m: int,
        *,
        alpha: float = 1.0,
        biased: bool = True,
    ) -> Any:
        """What the kernel writes of M tokens."""

        def launch(epilogue: ManyEpilogue, x: Any, out: Any, **more: Any) -> None:
            linear_many(device, self.bf16, plan, epilogue, self.weight, x, out, **more)

        return self.tokens.written(launch, epilogue, m, alpha, biased)

    def wrong(
        self,
        device: CudaDevice,
        plan: ManyPlan,
        epilogue: ManyEpilogue,
        m: int,
        alpha: float = 1.0,
        biased: bool = True,
    ) -> float:
        """The error of `run` as a part of what is allowed."""
        out = self.run(device, plan, epilogue, m, alpha=alpha, biased=biased)
        return self.tokens.off(out, self.product, epilogue, alpha, biased)


def chosen(device: CudaDevice, m: int, n: int, k: int) -> ManyPlan:
    plan = plan_for(m, n, k, device.multiprocessors)
    assert plan is not None
    return plan


def build(device: CudaDevice, bf16: bool, wanted: Iterable[tuple[ManyPlan, ManyEpilogue]]) -> None:
    """All at once, rather than one by one as they are met."""
    device.build(tuple(dict.fromkeys(unit(bf16, plan, epilogue) for plan, epilogue in wanted)))


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize(("n", "k"), ODD)
def test_odd_shapes_of_many_tokens(hopper: CudaDevice, bf16: bool, n: int, k: int) -> None:
    case = Case(bf16, n, k)
    tried = [(m, chosen(hopper, m, n, k), epilogue) for m in TOKENS for epilogue in EPILOGUES]
    build(hopper, bf16, ((plan, epilogue) for _, plan, epilogue in tried))
    for m, plan, epilogue in tried:
        assert case.wrong(hopper, plan, epilogue, m) < 1, (m, plan, epilogue)
        assert case.wrong(hopper, plan, epilogue, m, alpha=3.0, biased=False) < 1, (m, plan, epilogue)


@pytest.mark.parametrize("m", [1, 15, 64, 65, 129, 256])
@pytest.mark.parametrize("shared", KINDS)
def test_fewer_tokens_than_a_tile_has(hopper: CudaDevice, shared: Shared, m: int) -> None:
    case = Case(True, 336, 136)
    for epilogue in EPILOGUES:
        plan = spread(m, 336, (2, 1, 128), shared, 1, hopper.multiprocessors)
        assert case.wrong(hopper, plan, epilogue, m) < 1, epilogue


@pytest.mark.parametrize(("bf16", "n", "k", "epilogue"), REAL)
def test_products_of_models(hopper: CudaDevice, bf16: bool, n: int, k: int, epilogue: ManyEpilogue) -> None:
    case = Case(bf16, n, k)
    plans_of = {m: chosen(hopper, m, n, k) for m in TOKENS}
    build(hopper, bf16, ((plan, epilogue) for plan in plans_of.values()))
    for m, plan in plans_of.items():
        assert case.wrong(hopper, plan, epilogue, m, biased=epilogue == "store") < 1, (m, plan)


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_every_tile_in_every_kind_of_cluster_writes_the_same_bits(
    hopper: CudaDevice, epilogue: ManyEpilogue
) -> None:
    m, n, k = 1000, 1008, 1032
    case = Case(True, n, k)
    tried = [
        spread(m, n, tile, shared, LAGS[at % len(LAGS)], hopper.multiprocessors)
        for at, tile in enumerate(TILES)
        for shared in KINDS
    ]
    build(hopper, True, ((plan, epilogue) for plan in tried))
    assert case.wrong(hopper, tried[0], epilogue, m) < 1
    wanted = case.run(hopper, tried[0], epilogue, m)
    assert [plan for plan in tried if not (case.run(hopper, plan, epilogue, m) == wanted).all()] == []


@pytest.mark.parametrize("shared", KINDS)
@pytest.mark.parametrize("lag", LAGS)
def test_blocks_that_take_turns_and_bands_of_any_size_write_the_same_bits(
    hopper: CudaDevice, shared: Shared, lag: int
) -> None:
    """One cluster that has all tiles to itself, some of several turns each, and one for each tile."""
    case = Case(True, 1008, 520)
    own = spread(1000, 1008, (2, 1, 128), shared, lag, hopper.multiprocessors)
    cluster = own.cluster
    tried = [own, replace(own, blocks=cluster, band=3), replace(own, blocks=7 * cluster, band=1)]
    for epilogue in EPILOGUES:
        assert case.wrong(hopper, own, epilogue, 1000) < 1
        first, *others = (case.run(hopper, plan, epilogue, 1000) for plan in tried)
        assert all((first == other).all() for other in others), epilogue


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_the_same_bits_each_time_and_whatever_the_neighbours(
    hopper: CudaDevice, epilogue: ManyEpilogue
) -> None:
    case, count = Case(True, 1008, 1032), hopper.multiprocessors
    plan = spread(2100, 1008, (2, 1, 256), "rows", 1, count)
    together = case.run(hopper, plan, epilogue, 2100)
    assert all((case.run(hopper, plan, epilogue, 2100) == together).all() for _ in range(5))
    alone = case.run(hopper, spread(333, 1008, (2, 1, 256), "rows", 1, count), epilogue, 333)
    assert (together[:333] == alone).all()


@pytest.mark.parametrize("shared", KINDS)
def test_kernels_in_a_row_wait_for_what_they_read(hopper: CudaDevice, shared: Shared) -> None:
    """Each reads what the one before writes, and writes what that reads; the host waits between, or not."""
    m, c = 1200, 896
    rng = np.random.default_rng(0)
    gate_up, _ = halves(rng.standard_normal((2 * c, c)) / c**0.5, True)
    square, _ = halves(rng.standard_normal((c, c)) / c**0.5, True)
    start, _ = halves(rng.standard_normal((m, c)), True)

    def run(waits: bool) -> Any:
        x, y = cp.zeros((2, m, c), cp.uint16)
        sums = cp.zeros((m, c), cp.float32)
        there: list[tuple[ManyEpilogue, Any, Any, Any]] = [("store", square, y, x), ("store", square, x, y)]
        row = [("silu", gate_up, start, y), *there * 4, ("add", square, y, sums)]
        for epilogue, weight, source, out in row * 10:
            tile = (2, 1, 256) if epilogue == "silu" else (2, 2, 160)
            plan = spread(m, len(weight), tile, shared, 1, hopper.multiprocessors)
            linear_many(hopper, True, plan, epilogue, weight, source, out)
            if waits:
                hopper.synchronise()
        return sums

    found, wanted = run(waits=False), run(waits=True)
    assert (found == wanted).all() and float(cp.abs(found).mean()) > 0.1


def test_gates_that_are_far_off_close_or_open(hopper: CudaDevice) -> None:
    case = Case(True, 336, 136, scale=100.0)
    assert np.abs(case.product).max() > 300
    plan = chosen(hopper, 300, 336, 136)
    assert case.wrong(hopper, plan, "silu", 300, biased=False) < 1


def test_float16_saturates(hopper: CudaDevice) -> None:
    weight, _ = halves(np.full((16, 64), 1000.0), False)
    x, _ = halves(np.full((300, 64), -1000.0), False)
    out = cp.zeros((300, 16), cp.uint16)
    linear_many(hopper, False, chosen(hopper, 300, 16, 64), "store", weight, x, out)
    assert (widened(out, False) == -65504).all()
