"""Plans of linear_many for each product of a layer against cuBLASLt and what follows it: checked, then timed.

Run on a GPU from the repository root:
python3 -m benchmarks.variants.many OUT.json [7b 3b 0.5b] [1024 1200 …] [all] [check]
Each is a chain over rotating weights, more than caches hold, and long enough that the clock is that of a busy
GPU. cuBLASLt's time has SiLU·mul or the sum with the residual in it. Without `all`, those plans are tried
that the guess of many_plans ranks first. `check` times nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import cupy as cp

from benchmarks.chain import chain_us, random_bits, to_bits
from benchmarks.qwen_shapes import MODELS, linears
from benchmarks.variants.check import LIMIT, operands, relative, silu, wide
from benchmarks.variants.table import Table
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.gemm import Gemm
from llmrs_cli.kernels.launch import ceil_div
from llmrs_cli.kernels.linear_many import linear_many, unit
from llmrs_cli.kernels.loader import CubinCache, default_cache
from llmrs_cli.kernels.many_plans import LAGS, USUAL_LAG, ManyEpilogue, ManyPlan, cost, plans
from llmrs_cli.kernels.silu_mul import silu_mul

SIZES = (1024, 1200)
TILES, VARIED = 8, 2
"""Tiles and clusters that are tried, the cheapest by the guess, and those of them of which every lag is."""
COLD_BYTES, CHAIN_US, FLOPS_PER_US = 200e6, 20e3, 7e8
"""Weights of a chain, and its length at about so many operations."""


@dataclass(frozen=True, slots=True)
class Product:
    """One linear of a layer of a model, of M tokens."""

    name: str
    m: int
    n: int
    k: int
    epilogue: ManyEpilogue

    @property
    def operations(self) -> int:
        return 2 * self.m * self.n * self.k

    def candidates(self, multiprocessors: int, every: bool) -> list[ManyPlan]:
        """The plans that are tried, the cheapest by the guess first."""
        tiles = sorted(plans(self.m, self.n, multiprocessors), key=self.cost)
        chosen = tiles if every else tiles[:TILES]
        for tile in tiles[:VARIED]:
            chosen += [replace(tile, lag=lag) for lag in LAGS if lag != USUAL_LAG]
        return chosen

    def cost(self, plan: ManyPlan) -> float:
        return cost(plan, self.m, self.n, self.k)

    def wrong(self, device: CudaDevice, gemm: Gemm, tried: list[ManyPlan]) -> Iterator[float]:
        """The error of each plan against cuBLASLt."""
        weight, x, residual, product = operands(gemm, self.epilogue, self.m, self.n, self.k)
        wanted = silu(product) if self.epilogue == "silu" else product
        for plan in tried:
            out = residual.copy() if self.epilogue == "add" else cp.full(wanted.shape, 0x7FC0, cp.uint16)
            linear_many(device, True, plan, self.epilogue, weight, x, out)
            yield relative(wide(out), wanted)


class Chain:
    """Rotating weights of one product, and where results go."""

    def __init__(self, device: CudaDevice, gemm: Gemm, product: Product) -> None:
        m, n, k, epilogue = product.m, product.n, product.k, product.epilogue
        self.device, self.gemm, self.product = device, gemm, product
        count = max(2, ceil_div(int(COLD_BYTES), n * k * 2))
        self.weights = [random_bits(n * k).reshape(n, k) for _ in range(count)]
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

    def us(self, run: Callable[[Any], None]) -> float:
        total = max(4, int(CHAIN_US / (self.product.operations / FLOPS_PER_US)))
        return chain_us([partial(run, weight) for weight in self.weights], total)


def label(plan: ManyPlan) -> str:
    return f"{plan.tokens} x {plan.rows} by {plan.groups}, {plan.shared}, lag {plan.lag}"


def compare(
    table: Table, device: CudaDevice, gemm: Gemm, product: Product, every: bool, timed: bool
) -> float:
    """cuBLASLt, then each plan; the time that the best of all saves."""
    case = f"{product.name} M={product.m} {product.epilogue} {product.n} x {product.k}"
    tried = product.candidates(device.multiprocessors, every)
    errors = list(product.wrong(device, gemm, tried))
    chain = Chain(device, gemm, product)

    def rate(us: float) -> str:
        return f"{product.operations / us / 1e6:.0f} TFLOP/s" if us else ""

    library = chain.us(chain.library) if timed else 0.0
    table.add(case, "cuBLASLt", library, rate(library))
    best = library
    for plan, error in zip(tried, errors, strict=True):
        right = error < LIMIT
        us = chain.us(partial(chain.ours, plan)) if timed and right else 0.0
        verdict = f"error {error:.1e} {'ok' if right else 'FAIL'}"
        table.add(case, label(plan), us, f"{rate(us)} guess {product.cost(plan):.0f}, {verdict}")
        best = min(best, us) if us else best
    return library - best


def main() -> None:
    table = Table(Path(sys.argv[1]))
    names = [a for a in sys.argv[2:] if a in MODELS] or ["7b"]
    sizes = [int(a) for a in sys.argv[2:] if a.isdigit()] or list(SIZES)
    every, timed = "all" in sys.argv, "check" not in sys.argv
    device, gemm = CudaDevice(0, CubinCache(default_cache())), Gemm()
    layers = {
        (name, m): [Product(name, m, n, k, kind) for n, k, kind in linears(name) if kind != "logits"]
        for name in names
        for m in sizes
    }
    device.build(
        tuple(
            dict.fromkeys(
                unit(True, plan, product.epilogue)
                for products in layers.values()
                for product in products
                for plan in product.candidates(device.multiprocessors, every)
            )
        )
    )
    for (name, m), products in layers.items():
        saved = sum(compare(table, device, gemm, product, every, timed) for product in products)
        whole = sum(
            r.us for r in table.records if r.variant == "cuBLASLt" and r.case.startswith(f"{name} M={m} ")
        )
        if timed:
            print(
                f"   -> {name} M={m}: {whole:.0f} us a layer by cuBLASLt, the best save {saved:.0f}",
                flush=True,
            )
        cp.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
