"""Times the linears of Qwen2.5-7B on cuBLASLt over M, as a baseline for our own kernels. OUT.json as argument."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import cupy as cp

from benchmarks.chain import chain_us, random_bits
from benchmarks.sweep_linear_small import POOL, spread
from llmrs_cli.kernels.gemm import Gemm

SHAPES = {"qkv": (4608, 3584), "o": (3584, 3584), "gate_up": (37888, 3584), "down": (3584, 18944)}


def main() -> None:
    gemm = Gemm()
    pool = random_bits(POOL)
    records = []
    for name, (n, k) in SHAPES.items():
        weights = spread(pool, n, k)
        for m in (1, 16, 32, 64, 128, 256, 512, 2048):
            x = random_bits(m * k, 1.0).reshape(m, k)
            wide = name in ("o", "down")
            out = cp.zeros((m, n), cp.float32 if wide else cp.uint16)
            us = chain_us(
                [
                    lambda w=w, x=x, out=out: gemm(True, x, w, out, accumulate=out.dtype == cp.float32)
                    for w in weights
                ]
            )
            records.append({"shape": name, "m": m, "us": us, "tflops": 2 * m * n * k / us / 1e6})
            print(records[-1], flush=True)
    Path(sys.argv[1]).write_text(json.dumps({"records": records}, indent=1))


if __name__ == "__main__":
    main()
