"""The products between two attentions: one launch of layer_wide, by its cheapest plans, against four of linear_wide.

Run from the repository root: python3 -m benchmarks.variants.layer OUT.json [7b|3b|0.5b …] [TOKENS …]; by default all three
at 64, 128 and 192 tokens, less than a minute on an H200. A case is a recorded chain of layers over more weights than a cache
holds, without attentions in between; microseconds are a layer's. What does not agree with linear_wide says FAIL, and its
times then mean nothing.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cupy as cp

from benchmarks.chain import chain_us, from_bits, random_bits
from benchmarks.qwen_shapes import MODELS
from benchmarks.variants.check import LIMIT, relative
from benchmarks.variants.layer_products import copies
from benchmarks.variants.table import Table
from llmrs_cli.kernels import layer_wide, linear_wide
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.launch import ceil_div
from llmrs_cli.kernels.layer_plans import LayerPlan, LayerShape, cost, plans
from llmrs_cli.kernels.layer_wide import LayerMatrices
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.loader import CubinCache, Unit, default_cache
from llmrs_cli.kernels.norm_ahead import Ahead
from llmrs_cli.kernels.wide_plans import WidePlan, plan_for

SIZES, BEST, EPS = (64, 128, 192), 5, 1e-6
READ = 4.4e6
"""Bytes that memory gives in a microsecond."""
FOLLOWS: tuple[Epilogue, ...] = ("add", "silu", "add", "store")


def shape_of(name: str) -> LayerShape:
    c, _, heads, kv_heads, d, f, _, _ = MODELS[name]
    return LayerShape(heads * d, c, f, (heads + 2 * kv_heads) * d)


def layer_bytes(shape: LayerShape) -> int:
    return sum(2 * n * k for n, k in shape.products)


def random_layer(shape: LayerShape) -> LayerMatrices:
    o, gate_up, down, qkv = (random_bits(n * k).reshape(n, k) for n, k in shape.products)
    return LayerMatrices(o, gate_up, down, qkv, qkv_bias=cp.zeros(shape.qkv, cp.float32))


def candidates(m: int, shape: LayerShape, multiprocessors: int) -> list[LayerPlan]:
    """The cheapest by the guess, two at least of different clusters."""
    found = sorted(plans(m, shape, multiprocessors), key=lambda plan: cost(plan, m, shape))
    other = [plan for plan in found if plan.slices != found[0].slices]
    return list(dict.fromkeys((*found[:BEST], *other[:2])))


@dataclass
class Tokens:
    """M tokens of a layer, and room for all that is made of them."""

    device: CudaDevice
    m: int
    shape: LayerShape

    def __post_init__(self) -> None:
        m, shape = self.m, self.shape
        self.mixed = random_bits(m * shape.heads, 1.0).reshape(m, shape.heads)
        self.first = cp.random.standard_normal((m, shape.hidden), dtype=cp.float32)
        self.residual = self.first.copy()
        self.norm = cp.ones(shape.hidden, cp.float32)
        self.values = cp.zeros((m, shape.hidden), cp.uint16)
        self.activated = cp.zeros((m, shape.ffn), cp.uint16)
        self.qkv = cp.zeros((m, shape.qkv), cp.uint16)
        self.meeting = cp.zeros(16, cp.int32)
        self.squares: dict[int, Any] = {}

    def room(self, parts: int) -> Ahead:
        """For a norm, whose arrays are those of all others."""
        if parts not in self.squares:
            self.squares[parts] = cp.zeros((self.m, ceil_div(parts, 4) * 4), cp.float32)
        return Ahead(self.norm, self.values, self.squares[parts], parts)

    def four(self, chosen: list[WidePlan], layer: LayerMatrices) -> None:
        """A launch for each product."""
        o, gate_up, down, qkv = chosen
        run = partial(linear_wide.linear_wide, self.device, True)
        middle, last = (self.room(plan.parts(self.shape.hidden)) for plan in (o, down))
        run(o, "add", layer.o, self.mixed, self.residual, leaves=middle)
        run(gate_up, "silu", layer.gate_up, middle.values, self.activated, ahead=middle, eps=EPS)
        run(down, "add", layer.down, self.activated, self.residual, leaves=last)
        run(qkv, "store", layer.qkv, last.values, self.qkv, bias=layer.qkv_bias, ahead=last, eps=EPS)

    def one(self, plan: LayerPlan, layer: LayerMatrices) -> None:
        """One launch for all."""
        room = self.room(plan.parts(self.shape.hidden))
        layer_wide.layer_wide(
            self.device, True, plan, layer, self.mixed, self.residual, self.activated, room, room, self.qkv,
            self.meeting, EPS,
        )  # fmt: skip

    def results(self, run: Any, layers: list[LayerMatrices]) -> list[Any]:
        """What two layers make of the tokens as they were at first."""
        self.residual[...] = self.first
        for layer in layers[:2]:
            run(layer)
        return [self.residual.copy(), from_bits(self.activated), from_bits(self.qkv)]


def measure(table: Table, device: CudaDevice, name: str, m: int, layers: list[LayerMatrices]) -> None:
    """All ways of one size of step."""
    shape = shape_of(name)
    tokens, case, count = Tokens(device, m, shape), f"{name} T={m}", device.multiprocessors
    found = [plan_for(m, n, k, count) for n, k in shape.products]
    four = [plan for plan in found if plan is not None]
    wanted = None
    if len(four) == len(found):
        run = partial(tokens.four, four)
        wanted = tokens.results(run, layers)
        floor = layer_bytes(shape) / READ
        table.add(
            case,
            "four launches",
            chain_us([partial(run, one) for one in layers]),
            f"a read takes {floor:.1f}",
        )
    for plan in candidates(m, shape, count):
        once = partial(tokens.one, plan)
        results = tokens.results(once, layers)
        wanted = wanted or results
        wrong = max(relative(a, b) for a, b in zip(results, wanted, strict=True))
        note = f"guess {cost(plan, m, shape):.1f}, error {wrong:.1e}{'' if wrong < LIMIT else ' FAIL'}"
        table.add(case, label(plan), chain_us([partial(once, one) for one in layers]), note)


def label(plan: LayerPlan) -> str:
    rows = f"{plan.add_rows}/{plan.gate_rows}/{plan.qkv_rows}"
    return f"{plan.tokens} x {rows}, slices {plan.slices}, {plan.stages} stages"


def units(names: list[str], sizes: list[int], count: int) -> list[Unit]:
    """Everything that is run, to be compiled at once."""
    found: list[Unit] = []
    for name in names:
        shape = shape_of(name)
        for m in sizes:
            found += [layer_wide.unit(True, plan) for plan in candidates(m, shape, count)]
            for (n, k), epilogue in zip(shape.products, FOLLOWS, strict=True):
                plan = plan_for(m, n, k, count)
                found += [] if plan is None else [linear_wide.unit(True, plan, epilogue)]
    return list(dict.fromkeys(found))


def main() -> None:
    table = Table(Path(sys.argv[1]))
    names = [a for a in sys.argv[2:] if a in MODELS] or list(MODELS)
    sizes = [int(a) for a in sys.argv[2:] if a.isdigit()] or list(SIZES)
    device = CudaDevice(0, CubinCache(default_cache()))
    device.build(units(names, sizes, device.multiprocessors))
    for name in names:
        shape = shape_of(name)
        layers = [random_layer(shape) for _ in range(copies(layer_bytes(shape)))]
        for m in sizes:
            measure(table, device, name, m, layers)
        del layers
        cp.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
