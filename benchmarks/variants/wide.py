"""Plans of linear_wide for each product of a layer: checked, and timed in the body of a step, the others as found so far.

What a plan gains shows only between its neighbours: they start early in the room that it leaves, and it in theirs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cupy as cp

from benchmarks.chain import random_bits
from benchmarks.random_models import MODELS, random_model
from benchmarks.variants.check import LIMIT, operands, relative, silu, wide
from benchmarks.variants.steps import replay_us, run_of_body
from benchmarks.variants.table import Table
from llmrs_cli.engine.backends.cuda import CudaBackend
from llmrs_cli.engine.backends.cuda_dense import MEASURED
from llmrs_cli.engine.backends.handles import ModelWeights
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.gemm import Gemm
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.linear_wide import linear_wide, unit
from llmrs_cli.kernels.loader import CubinCache, default_cache
from llmrs_cli.kernels.norm_ahead import Ahead
from llmrs_cli.kernels.wide_plans import WidePlan, cost, plan_for, plans

CASES = {32: (32, 0), 64: (64, 0), 96: (64, 32), 128: (64, 64), 192: (64, 128), 256: (64, 192)}
"""Tokens of a step: sequences that decode, and a prompt's chunk beside them."""
CONTEXT, LAYERS, BEST = 320, 6, 8
EPILOGUES: dict[str, Epilogue] = {"qkv": "store", "o": "add", "gate_up": "silu", "down": "add"}
Shape = tuple[int, int]
Plans = dict[Shape, WidePlan | None]


def shapes(name: str) -> dict[str, Shape]:
    """(N, K) of the products of a layer, the slowest first."""
    c, _, heads, kv_heads, d, f, _, _ = MODELS[name]
    return {
        "down": (c, f),
        "gate_up": (2 * f, c),
        "qkv": ((heads + 2 * kv_heads) * d, c),
        "o": (c, heads * d),
    }


def candidates(m: int, n: int, k: int, multiprocessors: int) -> list[WidePlan]:
    """The cheapest by the guess."""
    found = sorted(plans(m, n, k, multiprocessors), key=lambda plan: cost(plan, m, n, k))
    return found[:BEST]


def label(plan: WidePlan) -> str:
    return f"{plan.groups * 64} x {plan.rows}, slices {plan.slices}, {plan.room}"


def error(device: CudaDevice, gemm: Gemm, plan: WidePlan, epilogue: Any, m: int, n: int, k: int) -> float:
    """Of the kernel against cuBLASLt; after "add" of what it leaves for a norm too, and what the next product makes of it."""
    weight, x, residual, product = operands(gemm, epilogue, m, n, k)
    if epilogue != "add":
        wanted = silu(product) if epilogue == "silu" else product
        out = cp.full(wanted.shape, 0x7FC0, cp.uint16)
        linear_wide(device, True, plan, epilogue, weight, x, out)
        return relative(wide(out), wanted)
    parts = plan.parts(n)
    norm = cp.random.standard_normal(n, dtype=cp.float32)
    squares = cp.full((m, parts + 3 - (parts - 1) % 4), cp.nan, cp.float32)
    leaves = Ahead(norm, cp.full((m, n), 0x7FC0, cp.uint16), squares, parts)
    linear_wide(device, True, plan, epilogue, weight, x, residual, leaves=leaves)
    rms = cp.sqrt((product**2).mean(axis=1, keepdims=True) + 1e-6)
    last = random_bits(128 * n).reshape(128, n)
    found = cp.full((m, 128), 0x7FC0, cp.uint16)
    after = plan_for(m, 128, n, device.multiprocessors)
    linear_wide(device, True, after, "store", last, leaves.values, found, ahead=leaves, eps=1e-6)
    wanted = (product * norm / rms) @ wide(last).T
    return max(relative(residual, product), relative(wide(found), wanted) / 2)


@dataclass
class Bodies:
    """Bodies of one model at one size of step."""

    model: ModelWeights
    name: str
    tokens: int
    seconds: dict[Any, float] = field(default_factory=dict)

    def us(self, plans: Mapping[Shape, WidePlan | None]) -> float:
        backend = CudaBackend(
            0,
            paths=replace(MEASURED, wide=lambda m, n, k, _: plans.get((n, k)) if m == self.tokens else None),
        )
        backend._bf16 = True
        decodes, prompt = CASES[self.tokens]
        run = run_of_body(backend, self.model, self.name, decodes, CONTEXT, prompt)
        stream = cp.cuda.get_current_stream()
        stream.begin_capture()
        run()
        us = replay_us(stream.end_capture(), stream) / LAYERS
        backend.close()
        return us


def improve(table: Table, bodies: Bodies, device: CudaDevice, gemm: Gemm) -> Plans:
    """From the best guesses on, product by product, the plan with which a layer is fastest."""
    m, case = bodies.tokens, f"{bodies.name} T={bodies.tokens}"
    table.add(f"{case} a layer", "cuBLASLt", bodies.us({}))
    count = device.multiprocessors
    chosen: Plans = {shape: plan_for(m, *shape, count) for shape in shapes(bodies.name).values()}
    best = table.add(f"{case} a layer", "as guessed", bodies.us(chosen))
    for product, (n, k) in shapes(bodies.name).items():
        guess = chosen[n, k]
        for plan in (*candidates(m, n, k, count), None):
            us, wrong = bodies.us({**chosen, (n, k): plan}) if plan != guess else best, 0.0
            note = ""
            if plan is not None:
                wrong = error(device, gemm, plan, EPILOGUES[product], m, n, k)
                note = f"guess {cost(plan, m, n, k):.1f}, error {wrong:.1e}{'' if wrong < LIMIT else ' FAIL'}"
            table.add(f"{case} {product}", "cuBLASLt" if plan is None else label(plan), us, note)
            if wrong < LIMIT and us < best:
                best, chosen[n, k] = us, plan
    table.add(f"{case} a layer", "all of these", best)
    return chosen


def main() -> None:
    table = Table(Path(sys.argv[1]))
    names = [a for a in sys.argv[2:] if a in MODELS] or list(MODELS)
    sizes = [int(a) for a in sys.argv[2:] if a.isdigit()] or list(CASES)
    device, gemm = CudaDevice(0, CubinCache(default_cache())), Gemm()
    wanted = [
        unit(True, plan, EPILOGUES[product])
        for name in names
        for m in sizes
        for product, shape in shapes(name).items()
        for plan in candidates(m, *shape, device.multiprocessors)
    ]
    device.build(tuple(dict.fromkeys(wanted)))
    for name in names:
        first = CudaBackend(0)
        model = random_model(first, name, CONTEXT + 256)
        model = replace(model, layers=model.layers[:LAYERS])
        for tokens in sizes:
            chosen = improve(table, Bodies(model, name, tokens), device, gemm)
            for product, shape in shapes(name).items():
                found = chosen[shape]
                print(
                    f"   -> {name} {tokens} {product}: {'cuBLASLt' if found is None else label(found)}",
                    flush=True,
                )
        del model
        cp.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
