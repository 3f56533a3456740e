"""Products of 16 to 256 tokens in chains of equal launches: cuBLASLt (and SiLU·mul behind it) against ours."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import cupy as cp

from benchmarks.bench_linears import POOL, SHAPES, read_us, spread
from benchmarks.chain import chain_us, random_bits
from benchmarks.variants.plans import MIDDLE, scratch_for, units
from benchmarks.variants.table import Table
from llmrs_cli.kernels import linear_mid
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.gemm import Gemm
from llmrs_cli.kernels.loader import CubinCache, default_cache
from llmrs_cli.kernels.silu_mul import silu_mul

SIZES = {"7B": (16, 32, 64, 96, 128, 192, 256), "3B": (16, 64, 128, 256), "0.5B": (16, 64, 128, 256)}


def library(device: CudaDevice, gemm: Gemm, epilogue: str, x: Any, weight: Any, out: Any, wide: Any) -> None:
    """What a layer runs now."""
    gemm(True, x, weight, wide if epilogue == "silu" else out, accumulate=epilogue == "add")
    if epilogue == "silu":
        silu_mul(device, True, wide, out)


def time_size(
    table: Table, device: CudaDevice, gemm: Gemm, pool: Any, name: str, m: int, floor: float
) -> None:
    rows, k, epilogue, _ = SHAPES[name]
    weights = spread(pool, rows, k)
    x, width = pool[-m * k :].reshape(m, k), rows // 2 if epilogue == "silu" else rows
    out = cp.zeros((m, width), cp.float32 if epilogue in ("add", "logits") else cp.uint16)
    both = cp.zeros((m, rows), cp.uint16)
    us = chain_us([partial(library, device, gemm, epilogue, x, w, out, both) for w in weights])
    table.add(f"{name} M={m}", "cuBLASLt", us, f"{floor / us:.0%} of a read")
    for variant, plan_for in MIDDLE.items():
        plan = plan_for(device, m, rows, k)
        scratch = scratch_for(plan, m, rows)
        product = partial(linear_mid.linear_mid, device, True, plan, epilogue)
        us = chain_us([partial(product, w, x, out, scratch) for w in weights])
        rate = 2 * m * rows * k / us / 1e6
        table.add(f"{name} M={m}", variant, us, f"{floor / us:.0%} of a read, {rate:.0f} TFLOP/s")


def main() -> None:
    table = Table(Path(sys.argv[1]))
    device, gemm = CudaDevice(0, CubinCache(default_cache())), Gemm()
    device.build(units(device))
    pool = random_bits(POOL)
    for name in SHAPES:
        floor = read_us(device, pool, name)
        for m in SIZES[name.split()[0]]:
            time_size(table, device, gemm, pool, name, m, floor)


if __name__ == "__main__":
    main()
