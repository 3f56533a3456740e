"""Sweeps the plans of linear_small over the shapes of Qwen2.5 and prints the best per shape and M.

Run on a GPU from the repository root: python3 -m benchmarks.sweep_linear_small OUT.json
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import cupy as cp

from benchmarks.chain import chain_us, random_bits
from llmrs_cli.kernels import linear_small as ls
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.linear_small import SmallPlan, linear_small
from llmrs_cli.kernels.loader import CubinCache, default_cache
from llmrs_cli.kernels.read_all import read_all

# name: (weight rows, K, epilogue, normed)
SHAPES = {
    "7B qkv": (4608, 3584, "store", True),
    "7B o": (3584, 3584, "add", False),
    "7B gate_up": (37888, 3584, "silu", True),
    "7B down": (3584, 18944, "add", False),
    "0.5B qkv": (1152, 896, "store", True),
    "0.5B o": (896, 896, "add", False),
    "0.5B gate_up": (9728, 896, "silu", True),
    "0.5B down": (896, 4864, "add", False),
    "3B qkv": (2560, 2048, "store", True),
    "3B gate_up": (22016, 2048, "silu", True),
    "3B down": (2048, 11008, "add", False),
}
UNITS = ((8, 2, 6, 3), (8, 2, 4, 3), (8, 2, 10, 1), (16, 2, 3, 1), (16, 2, 5, 1), (4, 2, 6, 6))
POOL = 6_000_000_000


def spread(pool: Any, rows: int, k: int) -> list[Any]:
    """Matrices all over the pool, as the layers of a model lie in memory: its pages exceed what a TLB holds."""
    count = min(56, (pool.size - 16 * k) // (rows * k))
    gap = (pool.size - 16 * k) // count // 8 * 8
    return [pool[i * gap : i * gap + rows * k].reshape(rows, k) for i in range(count)]


def run(device: CudaDevice, pool: Any, shape: tuple[int, int, str, bool], m: int, plan: SmallPlan) -> float:
    rows, k, epilogue, normed = shape
    normed = normed and m <= 8
    n = rows // 2 if epilogue == "silu" else rows
    weights = spread(pool, rows, k)
    x = pool[-m * k :].reshape(m, k)
    residual = cp.random.standard_normal((m, k), dtype=cp.float32)
    norm = cp.ones(k, cp.float32)
    bias = cp.zeros(rows, cp.float32) if epilogue == "store" else None
    out = cp.zeros((m, n), cp.float32 if epilogue in ("add", "logits") else cp.uint16)
    source = {"residual": residual, "norm": norm, "eps": 1e-6} if normed else {"x": x}
    return chain_us(
        [
            (lambda w=w: linear_small(device, True, plan, epilogue, w, out, bias=bias, **source))
            for w in weights
        ]
    )


def read_ceiling(device: CudaDevice, pool: Any, rows: int, k: int) -> float:
    weights = spread(pool, rows, k)
    best = 1e9
    for blocks in (device.multiprocessors, 2 * device.multiprocessors, 4 * device.multiprocessors):
        out = cp.zeros(blocks, cp.uint32)
        best = min(best, chain_us([(lambda w=w, out=out: read_all(device, w, out)) for w in weights]))
    return best


def main() -> None:
    device = CudaDevice(0, CubinCache(default_cache()))
    start = time.time()
    plans = [SmallPlan(1, 1, 0, *unit) for unit in UNITS]
    device.build([ls.unit(True, plan) for plan in plans])
    print(f"built in {time.time() - start:.1f} s", flush=True)
    pool = random_bits(POOL)
    records = []
    for name, shape in SHAPES.items():
        rows, k, epilogue, normed = shape
        ceiling = read_ceiling(device, pool, rows, k)
        print(f"{name}: read {ceiling:.2f} us {rows * k * 2 / ceiling / 1e6:.2f} TB/s", flush=True)
        for m in (1, 8, 16) if name.startswith("7B") else (1,):
            found = []
            for unit, blocks, split, ahead in itertools.product(UNITS, (1, 2), (1, 2, 4, 8, 16), (0, 65536)):
                warps = unit[0]
                if split > warps or k // 32 < 2 * split or (split < warps // 4):
                    continue
                if m > 1 and (ahead or blocks > 2):
                    continue
                plan = SmallPlan(blocks * device.multiprocessors, split, ahead, *unit)
                try:
                    us = run(device, pool, shape, m, plan)
                except Exception as error:  # a plan that does not fit is a finding
                    print(plan, str(error)[:120])
                    continue
                found.append((us, plan))
            found.sort(key=lambda item: item[0])
            for us, plan in found[:3]:
                print(f"  M={m} {us:7.2f} us {ceiling / us:.1%} {plan}", flush=True)
            us, plan = found[0]
            records.append(
                {
                    "shape": name,
                    "m": m,
                    "us": us,
                    "read_us": ceiling,
                    "share": ceiling / us,
                    "plan": str(plan),
                }
            )
    Path(sys.argv[1]).write_text(json.dumps({"device": device.name, "records": records}, indent=1))


if __name__ == "__main__":
    main()
