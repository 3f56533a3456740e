"""Products of more than a few tokens: linear_wide with many plans against cuBLASLt, checked and timed in chains."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cupy as cp

from benchmarks.bench_linears import POOL, SHAPES, library, read_us, spread
from benchmarks.chain import chain_us, random_bits
from benchmarks.variants.check import LIMIT, relative, silu, wide
from benchmarks.variants.table import Table
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.gemm import Gemm
from llmrs_cli.kernels.launch import ceil_div
from llmrs_cli.kernels.linear_wide import WidePlan, linear_wide, scratch_sizes
from llmrs_cli.kernels.loader import CubinCache, default_cache
from llmrs_cli.kernels.scratch import Scratch

TOKENS = (16, 64, 128, 192, 256)
ROWS = {1: (64, 96, 112, 128, 144, 160, 192, 256), 2: (64, 96, 112, 128, 144, 160, 192, 256),
        3: (64, 96, 112, 128, 144, 160, 192), 4: (64, 96, 112, 128)}  # fmt: skip
BEST = 12


def cost(plan: WidePlan, m: int, n: int, k: int) -> float:
    """Microseconds, roughly: the dearest of memory, cache, multiprocessor and tensor core, and a meeting of slices."""
    tokens = 64 * plan.groups
    items = ceil_div(n, plan.rows * plan.cluster) * ceil_div(m, tokens) * plan.slices
    turns, steps = ceil_div(items, plan.blocks // plan.cluster), ceil_div(ceil_div(k, 64), plan.slices)
    step = max(
        plan.rows * 128 / 34e3,
        (plan.rows + tokens / plan.cluster) * 128 / 42e3,
        (plan.rows + tokens) * 128 / 90e3,
        plan.rows * tokens * 128 / 5.6e6,
    )
    meeting = plan.rows * tokens * 4 * (1 + plan.slices) / 60e3 if plan.slices > 1 else 0
    return turns * (steps * step + meeting + 1.0)


def plans(m: int, n: int, k: int) -> list[WidePlan]:
    groups = min(ceil_div(m, 64), 4)
    found = [
        WidePlan(132, groups, rows, cluster, slices)
        for rows in ROWS[groups]
        for cluster in (2, 4)
        for slices in (1, 2, 3, 4, 5, 6, 7, 8)
        if slices <= ceil_div(k, 64) // 2
    ]
    return sorted(found, key=lambda plan: cost(plan, m, n, k))[:BEST]


def check(device: CudaDevice, gemm: Gemm, plan: WidePlan, name: str, m: int) -> float:
    rows, k, epilogue, _ = SHAPES[name]
    weight, x = random_bits(rows * k).reshape(rows, k), random_bits(m * k, 1.0).reshape(m, k)
    residual = cp.random.standard_normal((m, rows), dtype=cp.float32)
    product = residual.copy() if epilogue == "add" else cp.zeros((m, rows), cp.float32)
    gemm(True, x, weight, product, accumulate=epilogue == "add")
    wanted = silu(product) if epilogue == "silu" else product
    kind = cp.float32 if epilogue in ("add", "logits") else cp.uint16
    out = residual.copy() if epilogue == "add" else cp.full(wanted.shape, 0x7FC0, kind)
    scratch = scratch_for(plan, m, rows)
    linear_wide(device, True, plan, epilogue, weight, x, out, scratch)
    cp.cuda.Device().synchronize()
    assert not scratch.arrivals.any()
    return relative(wide(out), wanted)


def scratch_for(plan: WidePlan, m: int, n: int) -> Scratch:
    sums, tiles = scratch_sizes(plan, m, n)
    return Scratch(cp.full(sums, cp.nan, cp.float32), cp.zeros(tiles, cp.int32))


def times(device: CudaDevice, pool: Any, name: str, m: int) -> Iterator[tuple[WidePlan, float]]:
    rows, k, epilogue, _ = SHAPES[name]
    n = rows // 2 if epilogue == "silu" else rows
    out = cp.zeros((m, n), cp.float32 if epilogue in ("add", "logits") else cp.uint16)
    x, bias = pool[-m * k :].reshape(m, k), cp.zeros(rows, cp.float32) if epilogue == "store" else None
    for plan in plans(m, rows, k):
        scratch = scratch_for(plan, m, rows)
        run = partial(linear_wide, device, True, plan, epilogue)
        launches = [partial(run, w, x, out, scratch, bias=bias) for w in spread(pool, rows, k)]
        yield plan, chain_us(launches)


def main() -> None:
    table = Table(Path(sys.argv[1]))
    device, gemm, pool = CudaDevice(0, CubinCache(default_cache())), Gemm(), random_bits(POOL)
    for name in sys.argv[2:] or [name for name in SHAPES if "0.5B" not in name and "head" not in name]:
        rows, k, *_ = SHAPES[name]
        floor = read_us(device, pool, name)
        for m in TOKENS:
            us = chain_us(library(gemm, pool, name, m))
            table.add(f"{name} M={m}", "cuBLASLt", us, f"{floor / us:.0%} of a read")
            for plan, us in sorted(times(device, pool, name, m), key=lambda pair: pair[1])[:5]:
                error = check(device, gemm, plan, name, m)
                label = f"{plan.groups * 64} x {plan.rows}, cluster {plan.cluster}, slices {plan.slices}"
                speed = f"{2 * m * rows * k / us / 1e6:.0f} TFLOP/s, guess {cost(plan, m, rows, k):.0f}"
                table.add(f"{name} M={m}", label, us, f"{floor / us:.0%} of a read, {speed}, error {error:.1e}"
                          + ("" if error < LIMIT else " FAIL"))  # fmt: skip


if __name__ == "__main__":
    main()
