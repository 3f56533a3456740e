"""Plans of packed_wide for each product of a layer, each in a chain of its own, the fastest checked against packed_large.

Run on a GPU from the repository root: python3 -m benchmarks.variants.packed_wide_chains OUT.json [7b] [16 32 64 …]
Beside what is chosen stand, for each number of warpgroups, the cheapest plans by the guess of packed_wide_plans. A chain of
one kernel leaves out its neighbours: bodies are timed by benchmarks.variants.packed.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import cupy as cp

from benchmarks.bench_packed import BF16, GROUP, enough, matrices, read_us, room
from benchmarks.chain import chain_us, random_bits
from benchmarks.qwen_shapes import MODELS, linears
from benchmarks.variants.check import relative
from benchmarks.variants.table import Table
from llmrs_cli.kernels import packed_plans
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.loader import CubinCache, default_cache
from llmrs_cli.kernels.marlin_layout import Layout
from llmrs_cli.kernels.packed_large import packed_large, scratch_sizes
from llmrs_cli.kernels.packed_wide import packed_wide, unit
from llmrs_cli.kernels.packed_wide_plans import PackedWidePlan, cost, plan_for, plans

SIZES = (16, 32, 64)
BEST = 2
"""Plans of each number of warpgroups."""
CHECKED, LIMIT = 3, 1e-3
"""The fastest are checked against packed_large."""


def products(name: str) -> dict[Layout, Epilogue]:
    """Those of a layer, the slowest first."""
    found = {Layout(n, k, GROUP): epilogue for n, k, epilogue in linears(name) if epilogue != "logits"}
    return dict(sorted(found.items(), key=lambda product: -product[0].nbytes))


def candidates(m: int, layout: Layout, multiprocessors: int) -> list[PackedWidePlan]:
    """What is chosen first, then the cheapest of each number of warpgroups by the guess."""
    chosen = plan_for(m, layout, multiprocessors)
    assert chosen is not None
    found = sorted(plans(m, layout, multiprocessors), key=lambda plan: cost(plan, m, layout))
    alike: dict[int, list[PackedWidePlan]] = {}
    for plan in found:
        alike.setdefault(plan.warpgroups, []).append(plan)
    return list(dict.fromkeys([chosen, *(plan for some in alike.values() for plan in some[:BEST])]))


def label(plan: PackedWidePlan) -> str:
    return f"{plan.warpgroups * 64} x {plan.tokens}, {plan.blocks} blocks, slices {plan.slices}"


def error(device: CudaDevice, plan: PackedWidePlan, epilogue: Epilogue, m: int, layout: Layout) -> float:
    """Against packed_large, which sums in another order."""
    (weight,), x = matrices(layout, 1), random_bits(m * layout.columns, 1.0, False).reshape(m, -1)
    count = device.multiprocessors
    tiles = packed_plans.tile_plan(count, m, GROUP, True, True)
    columns = layout.rows // 2 if epilogue == "silu" else layout.rows
    if epilogue == "add":
        wanted = cp.random.standard_normal((m, columns), dtype=cp.float32)
    else:
        wanted = cp.zeros((m, columns), cp.uint16)
    found = wanted.copy() if epilogue == "add" else cp.full_like(wanted, 0x7FFF)
    scratch = room(*scratch_sizes(tiles, layout, m))
    packed_large(device, False, tiles, epilogue, weight, wanted, scratch, x=x)
    packed_wide(device, False, plan, epilogue, weight, found, x=x)
    if epilogue == "add":
        return relative(found, wanted)
    return relative(found.view(cp.float16).astype(cp.float32), wanted.view(cp.float16).astype(cp.float32))


def time_product(
    table: Table, device: CudaDevice, name: str, layout: Layout, epilogue: Epilogue, sizes: list[int]
) -> None:
    """All candidates of one product over tokens, then how exact the fastest are."""
    held = matrices(layout, enough(layout))
    floor = read_us(device, held)
    case = f"{name} {layout.rows} x {layout.columns}"
    table.add(f"{case} read", "read_all", floor)
    for m in sizes:
        x = random_bits(m * layout.columns, 1.0, BF16).reshape(m, -1)
        columns = layout.rows // 2 if epilogue == "silu" else layout.rows
        out: Any = cp.zeros((m, columns), cp.float32 if epilogue == "add" else cp.uint16)
        times: dict[PackedWidePlan, float] = {}
        for plan in candidates(m, layout, device.multiprocessors):
            calls = [partial(packed_wide, device, BF16, plan, epilogue, w, out, x=x) for w in held]
            us = times[plan] = chain_us(calls)
            rate = 2 * m * layout.rows * layout.columns / us / 1e6
            note = f"{floor / us:.0%} of a read, {rate:.0f} TFLOP/s, guess {cost(plan, m, layout):.1f}"
            table.add(f"{case} M={m}", label(plan), us, note)
        for plan in sorted(times, key=times.__getitem__)[:CHECKED]:
            wrong = error(device, plan, epilogue, m, layout)
            verdict = f"error {wrong:.1e} {'ok' if wrong < LIMIT else 'FAIL'}"
            table.add(f"{case} M={m} fastest", label(plan), times[plan], verdict)


def main() -> None:
    table, words = Table(Path(sys.argv[1])), sys.argv[2:]
    names = [word for word in words if word in MODELS] or ["7b"]
    sizes = [int(word) for word in words if word.isdigit()] or list(SIZES)
    device = CudaDevice(0, CubinCache(default_cache()))
    wanted = [
        unit(BF16, layout, plan, epilogue)
        for name in names
        for layout, epilogue in products(name).items()
        for m in sizes
        for plan in candidates(m, layout, device.multiprocessors)
    ]
    device.build(tuple(dict.fromkeys(wanted)))
    for name in names:
        for layout, epilogue in products(name).items():
            time_product(table, device, name, layout, epilogue, sizes)


if __name__ == "__main__":
    main()
