"""Products of 1 to 8 tokens in chains of equal launches, with the norm where a layer has it.

Run on a GPU from the repository root: python3 -m benchmarks.variants.few OUT.json [7b 3b 0.5b] [1 2 4 8]
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import cupy as cp

from benchmarks.bench_linears import POOL, SHAPES, read_us, spread
from benchmarks.chain import chain_us, random_bits
from benchmarks.qwen_shapes import MODELS
from benchmarks.variants.plans import FEW, units
from benchmarks.variants.table import Table
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.loader import CubinCache, default_cache


def source_of(pool: Any, m: int, k: int, normed: bool) -> dict[str, Any]:
    if not normed:
        return {"x": pool[-m * k :].reshape(m, k)}
    residual = cp.random.standard_normal((m, k), dtype=cp.float32)
    return {"residual": residual, "norm": cp.ones(k, cp.float32), "eps": 1e-6}


def time_shape(table: Table, device: CudaDevice, pool: Any, name: str, sizes: list[int]) -> None:
    rows, k, epilogue, normed = SHAPES[name]
    floor, weights = read_us(device, pool, name), spread(pool, rows, k)
    for m in sizes:
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
    table, words = Table(Path(sys.argv[1])), sys.argv[2:]
    sizes = [int(word) for word in words if word.isdigit()]
    names = [word for word in words if word in MODELS] or list(MODELS)
    device, pool = CudaDevice(0, CubinCache(default_cache())), random_bits(POOL)
    device.build(units())
    for shape in SHAPES:
        if shape.split()[0].lower() in names:
            time_shape(table, device, pool, shape, sizes or [1, 2])


if __name__ == "__main__":
    main()
