"""Products of 1 to 8 tokens in chains of equal launches, with the norm where a layer has it."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import cupy as cp

from benchmarks.bench_linears import POOL, SHAPES, read_us, spread
from benchmarks.chain import chain_us, random_bits
from benchmarks.variants.plans import FEW
from benchmarks.variants.table import Table
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.loader import CubinCache, default_cache


def source_of(pool: Any, m: int, k: int, normed: bool) -> dict[str, Any]:
    if not normed:
        return {"x": pool[-m * k :].reshape(m, k)}
    residual = cp.random.standard_normal((m, k), dtype=cp.float32)
    return {"residual": residual, "norm": cp.ones(k, cp.float32), "eps": 1e-6}


def time_shape(table: Table, device: CudaDevice, pool: Any, name: str) -> None:
    rows, k, epilogue, normed = SHAPES[name]
    floor, weights = read_us(device, pool, name), spread(pool, rows, k)
    for m in (1, 2):
        n = rows // 2 if epilogue == "silu" else rows
        out = cp.zeros((m, n), cp.float32 if epilogue in ("add", "logits") else cp.uint16)
        source = source_of(pool, m, k, normed)
        if epilogue == "store":
            source["bias"] = cp.zeros(rows, cp.float32)
        for variant, run in FEW.items():
            if run(device, m, epilogue, weights[0], out, **source):
                us = chain_us([partial(run, device, m, epilogue, w, out, **source) for w in weights])
                table.add(f"{name} M={m}", variant, us, f"{floor / us:.0%} of a read")


def main() -> None:
    table = Table(Path(sys.argv[1]))
    device, pool = CudaDevice(0, CubinCache(default_cache())), random_bits(POOL)
    for name in SHAPES:
        time_shape(table, device, pool, name)


if __name__ == "__main__":
    main()
