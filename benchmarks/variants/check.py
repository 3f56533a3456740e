"""Every variant's numbers on the shapes that it is for: products against cuBLASLt, attention against its two-kernel form.

The GPU tests hold the same kernels against float64 over odd shapes; this is the quick answer beside the times.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cupy as cp

from benchmarks.bench_linears import SHAPES
from benchmarks.chain import from_bits, random_bits
from benchmarks.variants.plans import FEW, units
from benchmarks.variants.steps import decode_case
from benchmarks.variants.table import Table
from llmrs_cli.kernels import attend_few
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.gemm import Gemm
from llmrs_cli.kernels.loader import CubinCache, default_cache

LIMIT = 1e-2
"""Relative error of two results that are each rounded to bf16 once or twice."""


def relative(found: Any, wanted: Any) -> float:
    return float(cp.linalg.norm(found - wanted) / cp.linalg.norm(wanted))


def report(table: Table, case: str, variant: str, errors: list[float]) -> None:
    worst = max(errors, key=lambda e: e if e == e else float("inf"))
    table.add(case, variant, 0.0, f"error {worst:.1e} {'ok' if worst < LIMIT else 'FAIL'}")


def wide(out: Any) -> Any:
    return out if out.dtype == cp.float32 else from_bits(out)


def silu(product: Any) -> Any:
    """Of (M, 2F) with 8 gates and 8 ups in turn."""
    gate, up = (product.reshape(len(product), -1, 2, 8)[:, :, i].reshape(len(product), -1) for i in range(2))
    return gate / (1 + cp.exp(-gate)) * up


def operands(gemm: Gemm, epilogue: Any, m: int, n: int, k: int) -> tuple[Any, Any, Any, Any]:
    """Random weight (N, K), x (M, K) and residual (M, N), and cuBLASLt's product of them, added to the residual or not."""
    weight, x = random_bits(n * k).reshape(n, k), random_bits(m * k, 1.0).reshape(m, k)
    residual = cp.random.standard_normal((m, n), dtype=cp.float32)
    product = residual.copy() if epilogue == "add" else cp.zeros((m, n), cp.float32)
    gemm(True, x, weight, product, accumulate=epilogue == "add")
    return weight, x, residual, product


def products(device: CudaDevice, gemm: Gemm, name: str, m: int) -> Iterator[tuple[str, float]]:
    """(variant, error) of one shape at M tokens."""
    rows, k, epilogue, _ = SHAPES[name]
    weight, x, residual, product = operands(gemm, epilogue, m, rows, k)
    wanted = silu(product) if epilogue == "silu" else product

    def fresh() -> Any:
        if epilogue == "add":
            return residual.copy()
        return cp.full((m, wanted.shape[1]), 0x7FC0 if epilogue in ("store", "silu") else cp.nan, kind())

    def kind() -> Any:
        return cp.float32 if epilogue == "logits" else cp.uint16

    for variant, run in FEW.items():
        out = fresh()
        if run(device, m, epilogue, weight, out, x=x):
            yield variant, relative(wide(out), wanted)


def attention(device: CudaDevice) -> Iterator[tuple[str, str, float]]:
    for contexts, heads, kv_heads, d in (
        ([300], 28, 4, 128),
        ([384, 1, 64, 65, 1000], 28, 4, 128),
        ([200] * 9, 14, 2, 64),
        ([320] * 64, 28, 4, 128),
        ([320, 20] * 32, 16, 2, 128),
    ):
        case = decode_case(device, contexts, heads, kv_heads, d, copies=1)
        parts = case.two_kernels()
        wanted = [from_bits(part).copy() for part in parts]
        name = f"attention {len(contexts)} x {contexts[0]}, head {d}"
        for blocks in attend_few.sizes(d, device.loader.arch, little=False):
            case.forget_newest()
            plan = attend_few.default_plan(d, blocks, little=False)
            found = [from_bits(part) for part in case.one_kernel(plan=plan)]
            yield name, f"{blocks} blocks", max(relative(a, b) for a, b in zip(found, wanted, strict=True))


def main() -> None:
    table = Table(Path(sys.argv[1]))
    device, gemm = CudaDevice(0, CubinCache(default_cache())), Gemm()
    device.build(units())
    for name, variant, error in attention(device):
        report(table, name, variant, [error])
    for name in ("7B qkv", "7B o", "7B gate_up", "7B down", "0.5B qkv", "0.5B gate_up", "0.5B down"):
        for m in (1, 2, 5, 16):
            for variant, error in products(device, gemm, name, m):
                report(table, f"{name} M={m}", variant, [error])


if __name__ == "__main__":
    main()
