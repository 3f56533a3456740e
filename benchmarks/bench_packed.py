"""Times the 4-bit kernels on the shapes of Qwen2.5 over M, many plans each, and prints how exact they are.

Run on a GPU from the repository root: python3 -m benchmarks.bench_packed OUT.json [7B 3B 0.5B] [few more slabs | errors]
Weights are random codes with groups of 128, spread over more memory than any cache. The share is that of a pure read
of the same bytes in the same kind of chain.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np

from benchmarks.bench_linears import SHAPES
from benchmarks.chain import chain_us, from_bits, random_bits, to_bits
from benchmarks.packed_errors import Packed, error, rounding_errors
from benchmarks.packed_errors import line as error_line
from llmrs_cli.engine.backends.cuda_memory import Arena
from llmrs_cli.engine.backends.cuda_packed import PackedLinear, PackedProducts
from llmrs_cli.kernels import packed_large, packed_plans, packed_small
from llmrs_cli.kernels.dequantise import unit as dequantise_unit
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.gemm import Gemm
from llmrs_cli.kernels.launch import Kernel, Shape
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.loader import CubinCache, Unit, default_cache
from llmrs_cli.kernels.marlin_layout import CODE_BYTES, UNIT_TILES, Layout, unpack
from llmrs_cli.kernels.packed4 import Packed4Matrix
from llmrs_cli.kernels.packed_large import TilePlan
from llmrs_cli.kernels.packed_small import StreamPlan
from llmrs_cli.kernels.read_all import read_all
from llmrs_cli.kernels.scratch import Scratch

GROUP = 128
BF16 = False
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 2048)
CHECKED = (1, 8, 16, 64, 128, 256, 1024)
SPREAD_BYTES = 2 << 30
"""That the matrices of a chain take together."""
STREAMS = [(2, 12, 3), (2, 14, 2), (2, 16, 3), (2, 8, 4), (4, 14, 2)]
"""Tiles, warps, stages."""
TILES = [
    (16, 16, 6, 1), (16, 8, 6, 2), (16, 8, 4, 2), (32, 12, 6, 1), (32, 8, 6, 2), (32, 16, 6, 1),
    (64, 12, 6, 1), (64, 12, 4, 1), (64, 8, 6, 1), (128, 8, 4, 1), (128, 8, 5, 1), (128, 4, 5, 1),
]  # fmt: skip
"""Tokens, warps, stages, and blocks a multiprocessor."""
SLABS = (16 << 20, 32 << 20, 64 << 20, 512 << 20)


@dataclass(frozen=True)
class Run:
    """One kernel with one plan, on each of the matrices of a chain."""

    kind: str
    plan: str
    launch: Callable[[Packed4Matrix], None]


def enough(layout: Layout) -> int:
    """Matrices that fill SPREAD_BYTES."""
    return max(4, min(56, SPREAD_BYTES // layout.nbytes))


def matrices(layout: Layout, count: int) -> list[Packed4Matrix]:
    """Random codes and zeros with scales near 0.01."""
    tiles = layout.unit_rows * layout.unit_columns * UNIT_TILES
    words = CODE_BYTES // 4
    made = []
    for _ in range(count):
        low, high = (cp.random.randint(0, 1 << 16, tiles * layout.tile_bytes // 4) for _ in range(2))
        units = (low | high << 16).astype(cp.uint32).reshape(tiles, -1)
        zeros, scales = units[:, words:] >> 28, 0x2000 + (units[:, words:] & 0x3FF)
        units[:, words:] = zeros << 16 | scales
        shape = layout.unit_rows, layout.unit_columns, layout.unit_bytes // 4
        made.append(Packed4Matrix(units.reshape(shape), layout))
    cp.cuda.Device().synchronize()  # kernels read weights without waiting for the kernel before
    return made


def room(partials: int, arrivals: int) -> Scratch:
    return Scratch(cp.zeros(max(partials, 1), cp.float32), cp.zeros(max(arrivals, 1), cp.int32))


def stream_plans(device: CudaDevice) -> list[StreamPlan]:
    count = device.multiprocessors
    return [StreamPlan(count, warps, tiles, stages, 220 << 10) for tiles, warps, stages in STREAMS]


def stream_label(plan: StreamPlan) -> str:
    return f"tiles {plan.tiles} warps {plan.warps} stages {plan.stages}"


def tile_plans(device: CudaDevice) -> list[TilePlan]:
    return [
        TilePlan(device.multiprocessors * resident, tokens, warps, stages, resident)
        for tokens, warps, stages, resident in TILES
    ]


def outputs(name: str, m: int) -> Any:
    rows, _, epilogue, _ = SHAPES[name]
    n = rows // 2 if epilogue == "silu" else rows
    return cp.zeros((m, n), cp.float32 if epilogue in ("add", "logits") else cp.uint16)


def few(device: CudaDevice, name: str, layout: Layout, m: int) -> Iterator[Run]:
    """packed_small, with the norm where the shape has one."""
    _, k, epilogue, normed = SHAPES[name]
    out, source = outputs(name, m), {"x": random_bits(m * k, 1.0, BF16).reshape(m, k)}
    if normed:
        residual = cp.random.standard_normal((m, k), dtype=cp.float32)
        source = {"residual": residual, "norm": cp.ones(k, cp.float32)}
    for plan in stream_plans(device):
        if plan.shared_bytes(layout, m, normed) <= device.shared_limit:
            launch = partial(packed_small.packed_small, device, BF16, plan, epilogue)
            yield Run("few", stream_label(plan), lambda w, go=launch: go(w, out, eps=1e-6, **source))  # type: ignore[misc]


def more(device: CudaDevice, name: str, layout: Layout, m: int) -> Iterator[Run]:
    """packed_large, with tiles of up to twice as many tokens as there are."""
    _, k, epilogue, _ = SHAPES[name]
    out, x = outputs(name, m), random_bits(m * k, 1.0, BF16).reshape(m, k)
    largest = max(size for size in packed_plans.tile_sizes(GROUP, True) if size < 2 * m or size == 16)
    for plan in tile_plans(device):
        scratch = room(*packed_large.scratch_sizes(plan, layout, m))
        fits = packed_large.shared_bytes(plan, layout) <= device.shared_limit // plan.resident
        if fits and largest // 2 <= plan.tokens <= largest:
            label = f"tokens {plan.tokens} warps {plan.warps} stages {plan.stages} x{plan.resident}"
            launch = partial(packed_large.packed_large, device, BF16, plan, epilogue)
            yield Run("more", label, lambda w, go=launch, s=scratch: go(w, out, s, x=x))  # type: ignore[misc]


def slabs(device: CudaDevice, gemm: Gemm, name: str, layout: Layout, m: int) -> Iterator[Run]:
    """dequantise and cuBLASLt; of gate and up without the gating."""
    rows, k, epilogue, _ = SHAPES[name]
    kind: Epilogue = "store" if epilogue == "silu" else epilogue
    out = cp.zeros((m, rows), cp.uint16 if kind == "store" else cp.float32)
    x = random_bits(m * k, 1.0, BF16).reshape(m, k)
    for size in (size for i, size in enumerate(SLABS) if i == 0 or SLABS[i - 1] < rows * k * 2):
        products = PackedProducts(device, Arena(), gemm, slab_bytes=size)

        def launch(w: Packed4Matrix, products: PackedProducts = products) -> None:
            products.by_slabs(kind, PackedLinear(w, None, None, BF16, ""), x, out, 1.0)

        yield Run("slabs", f"{size >> 20} MiB", launch)


def runs(device: CudaDevice, gemm: Gemm, name: str, layout: Layout, m: int, kinds: set[str]) -> Iterator[Run]:
    if m <= packed_small.MAX_TOKENS and "few" in kinds:
        yield from few(device, name, layout, m)
    if m >= 8 and "more" in kinds:
        yield from more(device, name, layout, m)
    if m >= 64 and "slabs" in kinds:
        yield from slabs(device, gemm, name, layout, m)


def read_us(device: CudaDevice, held: list[Packed4Matrix]) -> float:
    """A pure read of the same bytes."""
    flat = [w.units.reshape(1, -1).view(cp.uint16) for w in held]
    times = []
    for many in (1, 2, 4):
        out = cp.zeros(many * device.multiprocessors, cp.uint32)
        times.append(chain_us([partial(read_all, device, w, out) for w in flat]))
    return min(times)


def records(device: CudaDevice, names: set[str], kinds: set[str]) -> Iterator[dict[str, Any]]:
    gemm = Gemm()
    device.build(units(device))
    for name, (rows, k, _, _) in SHAPES.items():
        if "head" in name or name.split()[0] not in names:
            continue
        layout = Layout(rows, k, GROUP)
        held = matrices(layout, enough(layout))
        ceiling = read_us(device, held)
        for m in TOKENS:
            for run in runs(device, gemm, name, layout, m, kinds):
                us = chain_us([partial(run.launch, w) for w in held], total=56 if m < 1024 else 12)
                yield {
                    "shape": name, "m": m, "kind": run.kind, "plan": run.plan, "us": us, "read_us": ceiling,
                    "gb_s": layout.nbytes / us / 1e3, "tflop_s": 2 * m * rows * k / us / 1e6, "share": ceiling / us,
                }  # fmt: skip


def units(device: CudaDevice) -> list[Unit]:
    """Everything that is timed, to be compiled in parallel."""
    found = [dequantise_unit(BF16, GROUP)]
    found += [packed_small.unit(BF16, GROUP, plan) for plan in stream_plans(device)]
    found += [packed_large.unit(BF16, GROUP, plan) for plan in tile_plans(device)]
    return list(dict.fromkeys(found))


def accuracy(device: CudaDevice) -> Iterator[dict[str, Any]]:
    """‖Δy‖ / ‖y‖ of the float32 sums that the engine's own choice of kernel gives for so many tokens, against float64;
    beside products of weights that are rounded before."""
    layout = Layout(896, 4864, GROUP)
    (matrix,) = matrices(layout, 1)
    weight = on_host(matrix)
    products = PackedProducts(device, Arena(), Gemm())
    for bf16, mean, m in product((True, False), (0.0, 1.0), CHECKED):
        bits = to_bits(cp.random.standard_normal((m, layout.columns), dtype=cp.float32) + mean, bf16)
        x = cp.asnumpy(from_bits(bits, bf16)).astype(np.float64)
        out = cp.zeros((m, layout.rows), cp.float32)
        own = PackedLinear(matrix, None, None, bf16, "")
        kernels = launched(device, partial(products.plain, "add", bits, own, out))
        yield {
            "kernel": kernels, "type": "bf16" if bf16 else "f16", "mean": mean, "m": m,
            "error": error(cp.asnumpy(out), x @ weight.values().T), **rounding_errors(weight, x, bf16),
        }  # fmt: skip


def launched(device: CudaDevice, run: Callable[[], object]) -> str:
    """The kernels of ours that `run` launches."""
    seen: dict[str, None] = {}
    launch = device.launch

    def noted(kernel: Kernel, shape: Shape, slots: bytes) -> None:
        seen[kernel.unit.stem] = None
        launch(kernel, shape, slots)

    device.launch = noted  # type: ignore[method-assign]
    try:
        run()
    finally:
        device.launch = launch  # type: ignore[method-assign]
    return ", ".join(seen)


def on_host(matrix: Packed4Matrix) -> Packed:
    """The matrix as a file would hold it, by the host's way back from tiles."""
    layout = matrix.layout
    codes, scales, zeros = unpack(cp.asnumpy(matrix.units).view("u1"), GROUP, layout.rows, layout.columns)
    q = np.stack([codes & 15, codes >> 4], axis=-1).reshape(layout.rows, -1).astype(np.float64)
    return Packed(q - np.repeat(zeros, GROUP, axis=1), scales.astype(np.float64))


def line(r: dict[str, Any]) -> str:
    return (
        f"{r['shape']:13} M={r['m']:<4} {r['kind']:5} {r['plan']:34} {r['us']:8.2f} us {r['gb_s']:7.0f} GB/s "
        f"{r['tflop_s']:6.1f} TFLOP/s {r['share']:6.1%}"
    )


def main() -> None:
    words = set(sys.argv[2:])
    kinds = words & {"few", "more", "slabs"} or {"few", "more", "slabs"}
    device = CudaDevice(0, CubinCache(default_cache()))
    errors, found = list(accuracy(device)), list[dict[str, Any]]()
    print("\n".join(map(error_line, errors)), flush=True)
    Path(sys.argv[1]).write_text(json.dumps({"errors": errors}, indent=1))
    if "errors" in words:
        return
    for record in records(device, words & {"7B", "3B", "0.5B"} or {"7B", "3B", "0.5B"}, kinds):
        found.append(record)
        Path(sys.argv[1]).write_text(json.dumps({"errors": errors, "times": found}, indent=1))
    best: dict[tuple[str, int], dict[str, Any]] = {}
    for record in sorted(found, key=lambda r: -float(r["us"])):
        best[record["shape"], record["m"]] = record
    for key in sorted(best, key=lambda key: (list(SHAPES).index(key[0]), key[1])):
        print(line(best[key]))


if __name__ == "__main__":
    main()
