"""Plans of packed_many for each product of a layer against what serves as many tokens today: checked, then timed.

Run on a GPU from the repository root:
python3 -m benchmarks.variants.packed_many OUT.json [7b 3b 0.5b] [512 1024 …] [bf16] [all] [check]
Today: packed_large up to so many tokens as it is taken for, slabs of 16-bit weights and cuBLASLt (with the SiLU·mul or the
sum after it) for all. Each is a chain over rotating weights, more than caches hold, and long enough that the clock is that of
a busy GPU. Groups of 128; float16, as AWQ checkpoints are. Without `all`, those tiles are tried that the guess of
packed_many_plans ranks first, and all plans of the first. `check` times nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cupy as cp

from benchmarks.bench_packed import GROUP, matrices
from benchmarks.chain import from_bits, random_bits, to_bits
from benchmarks.variants.check import relative
from benchmarks.variants.layer_products import Product, copies, layers
from benchmarks.variants.table import Table
from llmrs_cli.engine.backends.cuda_memory import Arena
from llmrs_cli.engine.backends.cuda_packed import PackedLinear, PackedProducts
from llmrs_cli.kernels import packed_plans
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.gemm import Gemm
from llmrs_cli.kernels.loader import CubinCache, default_cache
from llmrs_cli.kernels.many_plans import LAGS, USUAL_LAG
from llmrs_cli.kernels.marlin_layout import Layout
from llmrs_cli.kernels.packed_many import packed_many, unit
from llmrs_cli.kernels.packed_many_plans import PackedManyPlan, cost, plans
from llmrs_cli.kernels.silu_mul import silu_mul

SIZES = (512, 1024, 1280, 2048)
TILES = 4
"""That are tried, the cheapest by the guess; of the first of them all clusters and lags, and all that may help."""
LIMIT = {True: 8e-3, False: 1e-3}
"""Relative error of two results that are each rounded once or twice, by whether to bf16."""


def layout(product: Product) -> Layout:
    return Layout(product.n, product.k, GROUP)


def guess(product: Product, plan: PackedManyPlan) -> float:
    return cost(plan, product.m, product.n, product.k)


def candidates(product: Product, multiprocessors: int, every: bool) -> list[PackedManyPlan]:
    """The plans that are tried, the cheapest by the guess first."""
    found = sorted(plans(product.m, layout(product), multiprocessors), key=partial(guess, product))
    tiles: dict[tuple[int, int, int], list[PackedManyPlan]] = {}
    for plan in found:
        tiles.setdefault((plan.groups, plan.deep, plan.rows), []).append(plan)
    first, *others = tiles.values()
    lags = [replace(first[0], lag=lag) for lag in LAGS if lag != USUAL_LAG]
    return lags + (found if every else first + [kind[0] for kind in others[: TILES - 1]])


class Chain:
    """Rotating weights of one product, and where results go."""

    def __init__(self, device: CudaDevice, gemm: Gemm, product: Product, bf16: bool) -> None:
        m, n, k, epilogue = product.m, product.n, product.k, product.epilogue
        self.device, self.product, self.bf16 = device, product, bf16
        self.products = PackedProducts(device, Arena(), gemm)
        bias = cp.random.standard_normal(n, dtype=cp.float32) if epilogue == "store" else None
        narrow = None if bias is None else to_bits(bias, bf16)
        held = matrices(layout(product), copies(layout(product).nbytes))
        self.weights = [PackedLinear(matrix, bias, narrow, bf16, "random") for matrix in held]
        self.x = random_bits(m * k, 1.0, bf16).reshape(m, k)
        self.whole = cp.zeros((m, n), cp.float32 if epilogue == "add" else cp.uint16)
        self.out = cp.zeros((m, n // 2), cp.uint16) if epilogue == "silu" else self.whole

    def slabs(self, weight: PackedLinear) -> None:
        kind = "store" if self.product.epilogue == "silu" else self.product.epilogue
        self.products.by_slabs(kind, weight, self.x, self.whole, 1.0)
        if self.product.epilogue == "silu":
            silu_mul(self.device, self.bf16, self.whole, self.out)

    def large(self, weight: PackedLinear) -> None:
        self.products.plain(self.product.epilogue, self.x, weight, self.out)

    def ours(self, plan: PackedManyPlan, weight: PackedLinear) -> None:
        kind = self.product.epilogue
        packed_many(self.device, self.bf16, plan, kind, weight.matrix, self.x, self.out, bias=weight.bias)

    def result(self, run: Callable[[PackedLinear], None]) -> Any:
        """What is written with the first weights, in float32."""
        self.out[...] = 0 if self.product.epilogue == "add" else 0x7FFF
        run(self.weights[0])
        return self.out.copy() if self.product.epilogue == "add" else from_bits(self.out, self.bf16)

    def wrong(self, tried: list[PackedManyPlan]) -> Iterator[float]:
        """The error of each plan against slabs."""
        wanted = self.result(self.slabs)
        for plan in tried:
            yield relative(self.result(partial(self.ours, plan)), wanted)


def label(plan: PackedManyPlan) -> str:
    return (
        f"{plan.tokens} x {plan.rows} by {plan.groups} + {plan.helpers}, shares {plan.shared}, lag {plan.lag}"
    )


def compare(
    table: Table, device: CudaDevice, gemm: Gemm, product: Product, every: bool, timed: bool, bf16: bool
) -> tuple[float, float]:
    """What serves today, then each plan; the best time of both."""
    tried = candidates(product, device.multiprocessors, every)
    chain = Chain(device, gemm, product, bf16)
    today = {"slabs": chain.slabs}
    if product.m <= packed_plans.TILE_TOKENS[True]:
        today = {"packed_large": chain.large, **today}
    before = best = float("inf") if timed else 0.0
    for name, run in today.items():
        us = product.us(run, chain.weights) if timed else 0.0
        table.add(product.case, name, us, product.rate(us))
        before = min(before, us)
    for plan, error in zip(tried, chain.wrong(tried), strict=True):
        right = timed and error < LIMIT[bf16]
        us = product.us(partial(chain.ours, plan), chain.weights) if right else 0.0
        product.tell(table, label(plan), us, guess(product, plan), error, LIMIT[bf16])
        best = min(best, us) if us else best
    return before, best


def main() -> None:
    table = Table(Path(sys.argv[1]))
    every, timed, bf16 = "all" in sys.argv, "check" not in sys.argv, "bf16" in sys.argv
    device, gemm = CudaDevice(0, CubinCache(default_cache())), Gemm()
    chosen = layers(sys.argv[2:], SIZES)
    wanted = [
        unit(bf16, plan, product.epilogue)
        for products in chosen.values()
        for product in products
        for plan in candidates(product, device.multiprocessors, every)
    ]
    device.build(tuple(dict.fromkeys((*packed_plans.units(bf16, GROUP, True, True), *wanted))))
    for (name, m), products in chosen.items():
        times = [compare(table, device, gemm, product, every, timed, bf16) for product in products]
        if timed:
            before, best = (sum(time[i] for time in times) for i in (0, 1))
            print(f"   -> {name} M={m}: {before:.0f} us a layer today, {best:.0f} with the best", flush=True)
        cp.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
