"""Plans of linear_many for each product of a layer against cuBLASLt and what follows it: checked, then timed.

Run on a GPU from the repository root:
python3 -m benchmarks.variants.many OUT.json [7b 3b 0.5b] [1024 1200 …] [all] [check]
Each is a chain over rotating weights, more than caches hold, and long enough that the clock is that of a busy
GPU. cuBLASLt's time has SiLU·mul or the sum with the residual in it. Without `all`, those plans are tried
that the guess of many_plans ranks first. `check` times nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cupy as cp

from benchmarks.chain import random_bits, to_bits
from benchmarks.variants.check import LIMIT, operands, relative, silu, wide
from benchmarks.variants.layer_products import Product, copies, layers
from benchmarks.variants.table import Table
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.gemm import Gemm
from llmrs_cli.kernels.linear_many import linear_many, unit
from llmrs_cli.kernels.loader import CubinCache, default_cache
from llmrs_cli.kernels.many_plans import LAGS, USUAL_LAG, ManyPlan, cost, plans
from llmrs_cli.kernels.silu_mul import silu_mul

SIZES = (1024, 1200)
TILES, VARIED = 8, 2
"""Tiles and clusters that are tried, the cheapest by the guess, and those of them of which every lag is."""


def guess(product: Product, plan: ManyPlan) -> float:
    return cost(plan, product.m, product.n, product.k)


def candidates(product: Product, multiprocessors: int, every: bool) -> list[ManyPlan]:
    """The plans that are tried, the cheapest by the guess first."""
    tiles = sorted(plans(product.m, product.n, multiprocessors), key=partial(guess, product))
    chosen = tiles if every else tiles[:TILES]
    for tile in tiles[:VARIED]:
        chosen += [replace(tile, lag=lag) for lag in LAGS if lag != USUAL_LAG]
    return chosen


def wrong(device: CudaDevice, gemm: Gemm, product: Product, tried: list[ManyPlan]) -> Iterator[float]:
    """The error of each plan against cuBLASLt."""
    weight, x, residual, multiplied = operands(gemm, product.epilogue, product.m, product.n, product.k)
    wanted = silu(multiplied) if product.epilogue == "silu" else multiplied
    for plan in tried:
        out = residual.copy() if product.epilogue == "add" else cp.full(wanted.shape, 0x7FC0, cp.uint16)
        linear_many(device, True, plan, product.epilogue, weight, x, out)
        yield relative(wide(out), wanted)


class Chain:
    """Rotating weights of one product, and where results go."""

    def __init__(self, device: CudaDevice, gemm: Gemm, product: Product) -> None:
        m, n, k, epilogue = product.m, product.n, product.k, product.epilogue
        self.device, self.gemm, self.product = device, gemm, product
        self.weights = [random_bits(n * k).reshape(n, k) for _ in range(copies(n * k * 2))]
        self.x = random_bits(m * k, 1.0).reshape(m, k)
        self.bias = cp.random.standard_normal(n, dtype=cp.float32) if epilogue == "store" else None
        self.narrow_bias = None if self.bias is None else to_bits(self.bias)
        self.whole = cp.zeros((m, n), cp.float32 if epilogue == "add" else cp.uint16)
        self.out = cp.zeros((m, n // 2), cp.uint16) if epilogue == "silu" else self.whole

    def library(self, weight: Any) -> None:
        adds = self.product.epilogue == "add"
        self.gemm(True, self.x, weight, self.whole, self.narrow_bias, accumulate=adds)
        if self.product.epilogue == "silu":
            silu_mul(self.device, True, self.whole, self.out)

    def ours(self, plan: ManyPlan, weight: Any) -> None:
        epilogue = self.product.epilogue
        linear_many(self.device, True, plan, epilogue, weight, self.x, self.out, bias=self.bias)


def label(plan: ManyPlan) -> str:
    return f"{plan.tokens} x {plan.rows} by {plan.groups}, {plan.shared}, lag {plan.lag}, band {plan.band}"


def compare(
    table: Table, device: CudaDevice, gemm: Gemm, product: Product, every: bool, timed: bool
) -> tuple[float, float]:
    """cuBLASLt, then each plan; the time of the former and the best of all."""
    tried = candidates(product, device.multiprocessors, every)
    errors = list(wrong(device, gemm, product, tried))
    chain = Chain(device, gemm, product)
    best = library = product.us(chain.library, chain.weights) if timed else 0.0
    table.add(product.case, "cuBLASLt", library, product.rate(library))
    for plan, error in zip(tried, errors, strict=True):
        us = product.us(partial(chain.ours, plan), chain.weights) if timed and error < LIMIT else 0.0
        product.tell(table, label(plan), us, guess(product, plan), error, LIMIT)
        best = min(best, us) if us else best
    return library, best


def main() -> None:
    table = Table(Path(sys.argv[1]))
    every, timed = "all" in sys.argv, "check" not in sys.argv
    device, gemm = CudaDevice(0, CubinCache(default_cache())), Gemm()
    chosen = layers(sys.argv[2:], SIZES)
    units = (
        unit(True, plan, product.epilogue)
        for products in chosen.values()
        for product in products
        for plan in candidates(product, device.multiprocessors, every)
    )
    device.build(tuple(dict.fromkeys(units)))
    for (name, m), products in chosen.items():
        times = [compare(table, device, gemm, product, every, timed) for product in products]
        if timed:
            library, best = (sum(time[i] for time in times) for i in (0, 1))
            saved = library - best
            print(
                f"   -> {name} M={m}: {library:.0f} us a layer by cuBLASLt, the best save {saved:.0f}",
                flush=True,
            )
        cp.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
