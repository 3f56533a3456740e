"""Whole bodies of a step with 4-bit weights as recorded graphs: widened, packed, and packed with other plans.

Run on a GPU from the repository root: python3 -m benchmarks.variants.packed OUT.json [7b 0.5b] [1 64 …] [chains]
`chains` times the products of up to 8 tokens instead, each in a chain of its own, and says by what share of a read.
Groups of 128 and float16, as AWQ checkpoints have them; codes are random. `packed` is what `packed_plans` says; a setting
that wins over it at its sizes belongs there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cupy as cp

from benchmarks.bench_linears import SHAPES
from benchmarks.bench_packed import (
    BF16,
    GROUP,
    TILES,
    enough,
    few,
    matrices,
    read_us,
    stream_label,
    stream_plans,
)
from benchmarks.chain import chain_us
from benchmarks.qwen_shapes import MODELS
from benchmarks.random_models import random_model
from benchmarks.variants.steps import body_us
from benchmarks.variants.table import Table
from llmrs_cli.engine.backends.cuda import CudaBackend
from llmrs_cli.engine.backends.cuda_linear import CudaLinear
from llmrs_cli.engine.backends.cuda_packed import PackedLinear
from llmrs_cli.engine.backends.handles import LayerWeights, Linear, ModelWeights
from llmrs_cli.kernels import packed_plans, packed_small, packed_wide_plans
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.loader import CubinCache, default_cache
from llmrs_cli.kernels.marlin_layout import Layout
from llmrs_cli.kernels.packed_large import TilePlan

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 512, 1024, 2048)
"""Tokens of a step; more than 128 are 64 that decode and a prompt's chunk."""
CONTEXT = 320
NO_TILES = {True: 0, False: 0}


def packed(linear: Linear) -> PackedLinear:
    """Random codes in place of a dense layer."""
    assert isinstance(linear, CudaLinear)
    (matrix,) = matrices(Layout(*linear.shape, GROUP), 1)
    return PackedLinear(matrix, linear.bias, linear.narrow_bias, False, "random")


def packed_model(model: ModelWeights) -> ModelWeights:
    def layer(dense: LayerWeights) -> LayerWeights:
        names = ("qkv", "o", "gate_up", "down")
        return replace(dense, **{name: packed(getattr(dense, name)) for name in names})

    return replace(model, layers=tuple(layer(dense) for dense in model.layers))


@contextmanager
def planned(**functions: Any) -> Iterator[None]:
    """`packed_plans` with some of its names replaced."""
    before = {name: getattr(packed_plans, name) for name in functions}
    for name, value in functions.items():
        setattr(packed_plans, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(packed_plans, name, value)


def settings(device: Any, tokens: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Labels and what they replace in `packed_plans`."""
    yield "packed", {}
    if tokens <= 8:
        for plan in stream_plans(device):
            yield stream_label(plan), {"stream_plan": always(plan)}
    else:
        if tokens <= packed_wide_plans.MOST_TOKENS:
            yield "packed_wide", {"WIDE_TOKENS": tokens}
        for size, warps, stages, resident in TILES:
            if min(tokens, 128) <= 2 * size and (size <= tokens or size == 16):
                tile = TilePlan(device.multiprocessors * resident, size, warps, stages, resident)
                label = f"tokens {size} warps {warps} stages {stages} x{resident}"
                yield label, {"tile_plan": always(tile), "TILE_TOKENS": {True: 1 << 20, False: 1 << 20}}
    if tokens >= 64:
        yield "slabs", {"TILE_TOKENS": NO_TILES}


def always(plan: Any) -> Callable[..., Any]:
    return lambda *_: plan


def time_body(
    table: Table, model: ModelWeights, name: str, tokens: int, label: str, groups: set[int]
) -> None:
    backend = CudaBackend(0)
    backend._bf16, backend._units.groups = False, groups
    decodes = 64 if tokens > 128 else tokens
    try:
        table.add(
            f"{name} T={tokens}", label, body_us(backend, model, name, decodes, CONTEXT, tokens - decodes)
        )
    except Exception as error:  # a plan that does not fit the GPU
        print(f"{name} T={tokens} {label}: {error}")
    backend.close()
    cp.get_default_memory_pool().free_all_blocks()


def time_chains(table: Table, names: list[str], sizes: list[int]) -> None:
    """Products of up to 8 tokens."""
    device = CudaDevice(0, CubinCache(default_cache()))
    device.build(list({packed_small.unit(BF16, GROUP, plan) for plan in stream_plans(device)}))
    for shape, (rows, k, _, _) in SHAPES.items():
        if "head" in shape or shape.split()[0].lower() not in names:
            continue
        layout = Layout(rows, k, GROUP)
        held = matrices(layout, enough(layout))
        floor = read_us(device, held)
        table.add(f"{shape} read", "read_all", floor)
        for m in sizes:
            for run in few(device, shape, layout, m):
                us = chain_us([partial(run.launch, weight) for weight in held])
                table.add(f"{shape} M={m}", run.plan, us, f"{floor / us:.0%} of a read")


def main() -> None:
    table, words = Table(Path(sys.argv[1])), sys.argv[2:]
    sizes = [int(word) for word in words if word.isdigit()]
    names = [word for word in words if word in MODELS]
    if "chains" in words:
        time_chains(table, names or list(MODELS), sizes or [1, 2, 4, 8])
        return
    for name in names or ("7b", "0.5b"):
        dense = random_model(CudaBackend(0), name, 4096)
        layers = [
            replace(
                layer,
                **{
                    part: replace(getattr(layer, part), bf16=False)
                    for part in ("qkv", "o", "gate_up", "down")
                },
            )
            for layer in dense.layers
        ]
        wide = replace(dense, layers=tuple(layers), embedding=replace(dense.embedding, bf16=False))  # type: ignore[type-var]
        narrow = packed_model(wide)
        for tokens in sizes or SIZES:
            time_body(table, wide, name, tokens, "widened", set())
            for label, changes in settings(CudaBackend(0).device, tokens):
                with planned(**changes):
                    time_body(table, narrow, name, tokens, label, {GROUP})


if __name__ == "__main__":
    main()
