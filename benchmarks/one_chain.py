"""One linear of Qwen2.5-7B at M = 1, a few launches on spread weights: for a hardware profiler."""

from __future__ import annotations

import sys

import cupy as cp

from benchmarks.bench_linears import SHAPES, spread
from benchmarks.chain import random_bits
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.linear_small import default_plan, linear_small
from llmrs_cli.kernels.loader import CubinCache, default_cache


def main() -> None:
    device = CudaDevice(0, CubinCache(default_cache()))
    rows, k, epilogue, normed = SHAPES[sys.argv[1]]
    weights = spread(random_bits(1_500_000_000), rows, k)
    plan = default_plan(rows, k, device.multiprocessors, device.shared_limit)
    n = rows // 2 if epilogue == "silu" else rows
    out = cp.zeros((1, n), cp.float32 if epilogue == "add" else cp.uint16)
    x, residual = random_bits(k).reshape(1, k), cp.ones((1, k), cp.float32)
    source = {"residual": residual, "norm": cp.ones(k, cp.float32), "eps": 1e-6} if normed else {"x": x}
    for weight in weights[:4]:
        linear_small(device, True, plan, epilogue, weight, out, **source)
    device.synchronise()


if __name__ == "__main__":
    main()
