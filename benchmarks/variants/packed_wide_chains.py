"""Products of some tokens by packed_wide, each in a chain of its own: forms of the kernel and of its plans side by side.

Run on a GPU from the repository root: python3 -m benchmarks.variants.packed_wide_chains OUT.json [7b] [16 32 64]
Beside what is chosen stand, for each number of warpgroups, the cheapest plans by the guess of packed_wide_plans: as they
are, paced, by warps, and with room for the next kernel's blocks. A chain of one kernel leaves out its neighbours: what wins
here has still to win in the body of a step (benchmarks.variants.packed_wide).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cupy as cp

from benchmarks.bench_packed import BF16, enough, matrices, read_us
from benchmarks.chain import chain_us, random_bits
from benchmarks.qwen_shapes import MODELS
from benchmarks.variants.packed_wide import error, label, products
from benchmarks.variants.table import Table
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.loader import CubinCache, default_cache
from llmrs_cli.kernels.marlin_layout import Layout
from llmrs_cli.kernels.packed_wide import packed_wide, unit
from llmrs_cli.kernels.packed_wide_plans import (
    MOST_BY_WARPS,
    MOST_OF_TWO,
    PackedWidePlan,
    cost,
    plan_for,
    plans,
)

SIZES = (16, 32, 64)
CHECKED, LIMIT = 3, 1e-3
"""The fastest are checked against packed_large."""


def shapes(m: int, layout: Layout, multiprocessors: int) -> Iterator[PackedWidePlan]:
    """What is chosen first, then the cheapest of each number of warpgroups: one with wgmma, two by warps."""
    chosen = plan_for(m, layout, multiprocessors)
    assert chosen is not None
    yield chosen
    for by_warps in (False, True) if chosen.tokens in MOST_BY_WARPS else (False,):
        alike = [
            replace(plan, by_warps=by_warps)
            for plan in plans(m, layout, multiprocessors)
            if plan.tokens == chosen.tokens
            and not (by_warps and plan.warpgroups > MOST_BY_WARPS[plan.tokens])
        ]
        for warpgroups in sorted({plan.warpgroups for plan in alike}):
            found = [plan for plan in alike if plan.warpgroups == warpgroups]
            yield from sorted(found, key=lambda plan: cost(plan, m, layout))[: 2 if by_warps else 1]


def forms(plan: PackedWidePlan, tiles: int) -> Iterator[PackedWidePlan]:
    """One plan in every form of the kernel that its registers allow."""
    kinds = [plan] if plan.by_warps else [plan, replace(plan, paced=True)]
    yield from kinds
    for kind in kinds:
        most = MOST_OF_TWO.get(plan.tokens, 0) // (2 if kind.by_warps and plan.tokens == 32 else 1)
        if plan.warpgroups <= most:
            yield replace(kind, resident=2)
            twice = min(2 * plan.blocks, tiles * plan.slices)
            if twice > plan.blocks:
                yield replace(kind, resident=2, blocks=twice)


def candidates(m: int, layout: Layout, multiprocessors: int) -> list[PackedWidePlan]:
    found = [
        form
        for plan in shapes(m, layout, multiprocessors)
        for form in forms(plan, plan.tiles(layout, m))
        if form.stages(layout) >= 2
    ]
    return list(dict.fromkeys(found))


def form_label(plan: PackedWidePlan) -> str:
    kinds = {"paced": plan.paced, "by warps": plan.by_warps, "two": plan.resident == 2}
    return ", ".join((label(plan), *(kind for kind, on in kinds.items() if on)))


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
            table.add(
                f"{case} M={m}", form_label(plan), us, f"{floor / us:.0%} of a read, {rate:.0f} TFLOP/s"
            )
        for plan in sorted(times, key=times.__getitem__)[:CHECKED]:
            wrong = error(device, plan, epilogue, m, layout)
            verdict = f"error {wrong:.1e} {'ok' if wrong < LIMIT else 'FAIL'}"
            table.add(f"{case} M={m} fastest", form_label(plan), times[plan], verdict)


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
