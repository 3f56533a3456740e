"""Times the linears of Qwen2.5 over M: ours and cuBLASLt, with their share of the read ceiling of the same chain.

Run on a GPU from the repository root: python3 -m benchmarks.bench_linears OUT.json [7B 3B 0.5B]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cupy as cp

from benchmarks.chain import chain_us, random_bits
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.gemm import Gemm
from llmrs_cli.kernels.linear_small import default_plan, linear_small
from llmrs_cli.kernels.loader import CubinCache, default_cache
from llmrs_cli.kernels.read_all import read_all

# name: (rows of W, K, epilogue, norm first)
SHAPES: dict[str, tuple[int, int, Any, bool]] = {
    "7B qkv": (4608, 3584, "store", True),
    "7B o": (3584, 3584, "add", False),
    "7B gate_up": (37888, 3584, "silu", True),
    "7B down": (3584, 18944, "add", False),
    "7B head": (152064, 3584, "logits", True),
    "3B qkv": (2560, 2048, "store", True),
    "3B o": (2048, 2048, "add", False),
    "3B gate_up": (22016, 2048, "silu", True),
    "3B down": (2048, 11008, "add", False),
    "0.5B qkv": (1152, 896, "store", True),
    "0.5B o": (896, 896, "add", False),
    "0.5B gate_up": (9728, 896, "silu", True),
    "0.5B down": (896, 4864, "add", False),
}
OURS, LIBRARY = (1, 2, 4, 8, 16), (16, 32, 64, 128)
POOL = 6_000_000_000
"""Values that the weights of a chain are spread over, as the layers of a model are over the memory."""


def spread(pool: Any, rows: int, k: int) -> list[Any]:
    """Matrices all over the pool."""
    count = min(56, (pool.size - 128 * k) // (rows * k))
    gap = (pool.size - 128 * k) // count // 8 * 8
    return [pool[i * gap : i * gap + rows * k].reshape(rows, k) for i in range(count)]


def ours(device: CudaDevice, pool: Any, name: str, m: int) -> list[Callable[[], None]]:
    rows, k, epilogue, normed = SHAPES[name]
    n = rows // 2 if epilogue == "silu" else rows
    source: dict[str, Any] = {"x": pool[-m * k :].reshape(m, k)}
    if normed and m <= 8:
        residual = cp.random.standard_normal((m, k), dtype=cp.float32)
        source = {"residual": residual, "norm": cp.ones(k, cp.float32), "eps": 1e-6}
    bias = cp.zeros(rows, cp.float32) if epilogue == "store" else None
    out = cp.zeros((m, n), cp.float32 if epilogue in ("add", "logits") else cp.uint16)
    plan = default_plan(rows, k, device.multiprocessors, device.shared_limit)
    return [
        lambda w=w: linear_small(device, True, plan, epilogue, w, out, bias=bias, **source)  # type: ignore[misc]
        for w in spread(pool, rows, k)
    ]


def library(gemm: Gemm, pool: Any, name: str, m: int) -> list[Callable[[], None]]:
    rows, k, epilogue, _ = SHAPES[name]
    wide = epilogue in ("add", "logits")
    x, out = pool[-m * k :].reshape(m, k), cp.zeros((m, rows), cp.float32 if wide else cp.uint16)
    accumulate = epilogue == "add"
    return [lambda w=w: gemm(True, x, w, out, accumulate=accumulate) for w in spread(pool, rows, k)]  # type: ignore[misc]


def read_us(device: CudaDevice, pool: Any, name: str) -> float:
    rows, k, _, _ = SHAPES[name]
    times = []
    for many in (1, 2, 4):
        out = cp.zeros(many * device.multiprocessors, cp.uint32)
        launches = [lambda w=w, out=out: read_all(device, w, out) for w in spread(pool, rows, k)]  # type: ignore[misc]
        times.append(chain_us(launches))
    return min(times)


def records(names: list[str]) -> Iterator[dict[str, Any]]:
    device, gemm = CudaDevice(0, CubinCache(default_cache())), Gemm()
    pool = random_bits(POOL)
    for name in SHAPES:
        if names and name.split()[0] not in names:
            continue
        rows, k, _, _ = SHAPES[name]
        ceiling = read_us(device, pool, name)
        base = {
            "shape": name,
            "rows": rows,
            "k": k,
            "read_us": ceiling,
            "read_tb_s": rows * k * 2 / ceiling / 1e6,
        }
        for kind, sizes in (("ours", OURS), ("cublaslt", LIBRARY)):
            for m in sizes:
                launches = ours(device, pool, name, m) if kind == "ours" else library(gemm, pool, name, m)
                us = chain_us(launches)
                yield base | {"kind": kind, "m": m, "us": us, "share": ceiling / us}


def main() -> None:
    found = []
    for record in records(sys.argv[2:]):
        found.append(record)
        print(
            f"{record['shape']:13} {record['kind']:9} M={record['m']:<4} {record['us']:7.2f} us {record['share']:.1%}"
        )
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
