"""Plans of packed_wide for each product of a layer: checked against packed_large, and timed in the body of a step.

Run on a GPU from the repository root: python3 -m benchmarks.variants.packed_wide OUT.json [7b] [64 128 …] [check]
`check` times nothing. Beside what is chosen stand packed_large and our kernels for bfloat16; then, product by product, the
cheapest plans by the guess of packed_wide_plans, the others as found so far.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cupy as cp

from benchmarks.bench_packed import GROUP, matrices, room
from benchmarks.chain import random_bits
from benchmarks.qwen_shapes import MODELS, linears
from benchmarks.random_models import random_model
from benchmarks.variants.check import relative
from benchmarks.variants.packed import packed_model, planned
from benchmarks.variants.steps import replay_us, run_of_body
from benchmarks.variants.table import Table
from llmrs_cli.engine.backends.cuda import CudaBackend
from llmrs_cli.engine.backends.handles import ModelWeights
from llmrs_cli.kernels import packed_plans
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.loader import CubinCache, default_cache
from llmrs_cli.kernels.marlin_layout import Layout
from llmrs_cli.kernels.packed_large import packed_large, scratch_sizes
from llmrs_cli.kernels.packed_wide import packed_wide, unit
from llmrs_cli.kernels.packed_wide_plans import PackedWidePlan, cost, plan_for, plans

CASES = {
    16: (16, 0), 32: (32, 0), 64: (64, 0), 96: (64, 32), 128: (64, 64), 192: (64, 128), 256: (64, 192),
}  # fmt: skip
"""Tokens of a step: sequences that decode, and a prompt's chunk beside them."""
CONTEXT, LAYERS, BEST, LIMIT = 320, 6, 4, 1e-3
Plans = Mapping[Layout, PackedWidePlan]
Products = dict[Layout, Epilogue]


def products(name: str) -> Products:
    """Those of a layer, the slowest first."""
    found = {Layout(n, k, GROUP): epilogue for n, k, epilogue in linears(name) if epilogue != "logits"}
    return dict(sorted(found.items(), key=lambda product: -product[0].nbytes))


def candidates(m: int, layout: Layout, multiprocessors: int) -> list[PackedWidePlan]:
    """The cheapest by the guess."""
    return sorted(plans(m, layout, multiprocessors), key=lambda plan: cost(plan, m, layout))[:BEST]


def label(plan: PackedWidePlan) -> str:
    return f"{plan.warpgroups * 64} x {plan.tokens}, {plan.blocks} blocks, slices {plan.slices}"


def error(device: CudaDevice, plan: PackedWidePlan, epilogue: Any, m: int, layout: Layout) -> float:
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


@dataclass(frozen=True)
class Bodies:
    """Bodies of one model at one size of step."""

    dense: ModelWeights
    packed: ModelWeights
    name: str
    tokens: int

    def _us(self, model: ModelWeights, bf16: bool) -> float:
        backend = CudaBackend(0)
        backend._bf16, backend._units.groups = bf16, set() if bf16 else {GROUP}
        decodes, prompt = CASES[self.tokens]
        run = run_of_body(backend, model, self.name, decodes, CONTEXT, prompt)
        stream = cp.cuda.get_current_stream()
        stream.begin_capture()
        run()
        us = replay_us(stream.end_capture(), stream) / len(model.layers)
        backend.close()
        return us

    def bf16_us(self) -> float:
        return self._us(self.dense, True)

    def us(self, plans: Plans) -> float:
        with planned(wide_plan=lambda _, m, layout, __: plans.get(layout) if m == self.tokens else None):
            return self._us(self.packed, False)


def improve(table: Table, bodies: Bodies, device: CudaDevice) -> Plans:
    """From the best guesses on, product by product, the plan with which a layer is fastest."""
    m, case, count = bodies.tokens, f"{bodies.name} T={bodies.tokens}", device.multiprocessors
    table.add(f"{case} a layer", "packed_large", bodies.us({}))
    table.add(f"{case} a layer", "bf16", bodies.bf16_us())
    shapes = products(bodies.name)
    chosen = {layout: candidates(m, layout, count)[0] for layout in shapes}
    best = table.add(f"{case} a layer", "as guessed", bodies.us(chosen))
    for layout, epilogue in shapes.items():
        guess = chosen[layout]
        for plan in candidates(m, layout, count):
            us = bodies.us({**chosen, layout: plan}) if plan != guess else best
            wrong = error(device, plan, epilogue, m, layout)
            note = f"guess {cost(plan, m, layout):.1f}, error {wrong:.1e}{'' if wrong < LIMIT else ' FAIL'}"
            table.add(f"{case} {layout.rows} x {layout.columns}", label(plan), us, note)
            if wrong < LIMIT and us < best:
                best, chosen[layout] = us, plan
    table.add(f"{case} a layer", "all of these", best)
    return chosen


def check(table: Table, device: CudaDevice, name: str, sizes: list[int]) -> None:
    for m in sizes:
        for layout, epilogue in products(name).items():
            plan = plan_for(m, layout, device.multiprocessors)
            assert plan is not None
            wrong = error(device, plan, epilogue, m, layout)
            verdict = f"error {wrong:.1e} {'ok' if wrong < LIMIT else 'FAIL'}"
            table.add(f"{name} T={m} {layout.rows} x {layout.columns}", label(plan), 0.0, verdict)


def main() -> None:
    table = Table(Path(sys.argv[1]))
    names = [a for a in sys.argv[2:] if a in MODELS] or ["7b"]
    sizes = [int(a) for a in sys.argv[2:] if a.isdigit()] or list(CASES)
    device = CudaDevice(0, CubinCache(default_cache()))
    wanted = [
        unit(False, layout, plan, epilogue)
        for name in names
        for m in sizes
        for layout, epilogue in products(name).items()
        for plan in candidates(m, layout, device.multiprocessors)
    ]
    device.build(tuple(dict.fromkeys(wanted)))
    for name in names:
        check(table, device, name, sizes)
        if "check" in sys.argv:
            continue
        dense = random_model(CudaBackend(0), name, CONTEXT + 256)
        dense = replace(dense, layers=dense.layers[:LAYERS])
        packed = packed_model(replace(dense, embedding=replace(dense.embedding, bf16=False)))  # type: ignore[type-var]
        for m in sizes:
            for layout, plan in improve(table, Bodies(dense, packed, name, m), device).items():
                print(f"   -> {name} {m} {layout.rows} x {layout.columns}: {label(plan)}", flush=True)
        del dense, packed
        cp.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
