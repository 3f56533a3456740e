"""Chunks of prompts: every algorithm that cuBLASLt proposes, the small kernels between, and sizes of a chunk."""

from __future__ import annotations

import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np

from benchmarks.bench_linears import SHAPES
from benchmarks.chain import chain_us, random_bits
from benchmarks.variants.table import Table
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.gemm import Gemm
from llmrs_cli.kernels.loader import CubinCache, default_cache
from llmrs_cli.kernels.rms_norm import rms_norm
from llmrs_cli.kernels.rope_store import rope_store
from llmrs_cli.kernels.silu_mul import silu_mul
from llmrs_cli.kernels.tune import Choice, Tuning

TOKENS = (8192, 4096, 16384)


class Seen(Tuning):
    """Keeps the time of every candidate."""

    def __init__(self) -> None:
        super().__init__(None, "", "")
        self.times: list[float] = []

    def choose(self, key: str, candidates: Any, rounds: int = 1) -> str:
        taken = [[measure() for measure in candidates.values()] for _ in range(rounds)]
        self.times = [statistics.median(times) for times in zip(*taken[1:], strict=True)]
        best = min(range(len(self.times)), key=self.times.__getitem__)
        value = list(candidates)[best]
        self._choices[key] = Choice(value, self.times[best])
        return value


def time_product(
    table: Table, seen: Seen, gemm: Gemm, name: str, tokens: int, wide: bool, adds: bool
) -> None:
    rows, k, _, _ = SHAPES[name]
    x, weight = random_bits(tokens * k, 1.0).reshape(tokens, k), random_bits(rows * k).reshape(rows, k)
    out = cp.zeros((tokens, rows), cp.float32 if wide else cp.uint16)
    us = chain_us([partial(gemm, True, x, weight, out, accumulate=adds)], total=4)
    rate = 2 * tokens * rows * k / us / 1e6
    times = " ".join(f"{t:.0f}" for t in seen.times)
    kind = f"{'f32' if wide else 'bf16'}{' +=' if adds else ''}"
    table.add(f"{name} M={tokens}", kind, us, f"{rate:.0f} TFLOP/s; proposals: {times}")


def time_products(table: Table, tokens: int) -> None:
    seen = Seen()
    gemm = Gemm(seen)
    for name in ("7B qkv", "7B o", "7B gate_up", "7B down"):
        kinds = (
            ((True, True), (True, False), (False, False)) if SHAPES[name][2] == "add" else ((False, False),)
        )
        for wide, adds in kinds:
            time_product(table, seen, gemm, name, tokens, wide, adds)
    cp.get_default_memory_pool().free_all_blocks()


def time_between(table: Table, device: CudaDevice, tokens: int) -> None:
    """The kernels of a layer that are no products and no attention."""
    c, f, heads, kv_heads, d = 3584, 18944, 28, 4, 128
    residual = cp.random.standard_normal((tokens, c), dtype=cp.float32)
    normed, weight = cp.zeros((tokens, c), cp.uint16), cp.ones(c, cp.float32)
    us = chain_us([lambda: rms_norm(device, True, residual, weight, 1e-6, normed)], total=8)
    table.add(f"7B between M={tokens}", "rms_norm", us, f"{tokens * c * 6 / us / 1e6:.2f} TB/s")
    gate_up, out = random_bits(tokens * 2 * f, 1.0).reshape(tokens, 2 * f), cp.zeros((tokens, f), cp.uint16)
    us = chain_us([lambda: silu_mul(device, True, gate_up, out)], total=8)
    table.add(f"7B between M={tokens}", "silu_mul", us, f"{tokens * f * 6 / us / 1e6:.2f} TB/s")
    qkv = random_bits(tokens * (heads + 2 * kv_heads) * d, 1.0).reshape(tokens, -1)
    positions = cp.arange(tokens, dtype=cp.int32) % 2048
    slots, table_of = cp.arange(tokens, dtype=cp.int32), cp.asarray(np.ones((2049, d), np.float32))
    q = cp.zeros((tokens, heads, d), cp.uint16)
    keys, values = (cp.zeros((tokens // 64, kv_heads, 64, d), cp.uint16) for _ in range(2))
    us = chain_us(
        [
            lambda: rope_store(
                device, True, qkv, positions, slots, table_of, (None, None), 1e-6, q, keys, values
            )
        ],
        total=8,
    )
    size = tokens * (heads + 2 * kv_heads) * d * 4
    table.add(f"7B between M={tokens}", "rope_store", us, f"{size / us / 1e6:.2f} TB/s")


def main() -> None:
    table = Table(Path(sys.argv[1]))
    device = CudaDevice(0, CubinCache(default_cache()))
    time_between(table, device, TOKENS[0])
    for tokens in TOKENS:
        time_products(table, tokens)


if __name__ == "__main__":
    main()
