"""Products of 1 to 8 tokens in chains of equal launches, with the norm where a layer has it; and whole bodies of one token.

Run on a GPU from the repository root: python3 -m benchmarks.variants.few OUT.json [7b 3b 0.5b] [1 2 4 8] [bodies]
`bodies` times bodies instead: as measured, and with every product of few tokens brought by the copy engine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import cupy as cp

from benchmarks.bench_linears import POOL, SHAPES, read_us, spread
from benchmarks.chain import chain_us, random_bits
from benchmarks.qwen_shapes import MODELS
from benchmarks.random_models import random_model
from benchmarks.variants.plans import BOXES, FEW, LONG_ROWS, Sizes, box_plan, long_rows_plan, units
from benchmarks.variants.steps import body_us
from benchmarks.variants.table import Table
from llmrs_cli.engine.backends.cuda import CudaBackend
from llmrs_cli.kernels import linear_rows, linear_small
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.loader import CubinCache, default_cache

CONTEXT = 320
Changes = dict[tuple[Any, str], Callable[..., Any]]
"""What takes the place of a name of a module."""


def source_of(pool: Any, m: int, k: int, normed: bool) -> dict[str, Any]:
    if not normed:
        return {"x": pool[-m * k :].reshape(m, k)}
    residual = cp.random.standard_normal((m, k), dtype=cp.float32)
    return {"residual": residual, "norm": cp.ones(k, cp.float32), "eps": 1e-6}


def time_shape(table: Table, device: CudaDevice, pool: Any, name: str, sizes: list[int]) -> None:
    rows, k, epilogue, normed = SHAPES[name]
    floor, weights = read_us(device, pool, name), spread(pool, rows, k)
    for m in sizes:
        n = rows // 2 if epilogue == "silu" else rows
        out = cp.zeros((m, n), cp.float32 if epilogue in ("add", "logits") else cp.uint16)
        source = source_of(pool, m, k, normed)
        if epilogue == "store":
            source["bias"] = cp.zeros(rows, cp.float32)
        for variant, run in FEW.items():
            if run(device, m, epilogue, weights[0], out, **source):
                us = chain_us([partial(run, device, m, epilogue, w, out, **source) for w in weights])
                table.add(f"{name} M={m}", variant, us, f"{floor / us:.0%} of a read")


def settings(device: CudaDevice) -> Iterator[tuple[str, Changes]]:
    """Labels and changes."""
    yield "as measured", {}

    def boxes(box: Sizes) -> Changes:
        return {(linear_small, "default_plan"): lambda n, k, *_: box_plan(device, n, k, box)}

    def rows(long: Sizes) -> Changes:
        return {(linear_rows, "default_plan"): lambda n, k, *_: long_rows_plan(device, n, k, long)}

    for box in BOXES:
        yield f"boxes {box}", boxes(box)
    for long in LONG_ROWS:
        yield f"boxes {BOXES[2]}, long rows {long}", {**boxes(BOXES[2]), **rows(long)}
        everywhere: Changes = {(linear_rows, "suits"): lambda m, *_: m <= linear_rows.MAX_TOKENS}
        yield f"long rows {long} everywhere", {**rows(long), **everywhere}


@contextmanager
def changed(changes: Changes) -> Iterator[None]:
    """With these changes."""
    before = {(module, name): getattr(module, name) for module, name in changes}
    for (module, name), function in changes.items():
        setattr(module, name, function)
    try:
        yield
    finally:
        for (module, name), function in before.items():
            setattr(module, name, function)


def time_bodies(table: Table, name: str, sizes: list[int]) -> None:
    first = CudaBackend(0)
    first.device.build(units(first.device))
    model = random_model(first, name, CONTEXT + 1)
    for tokens in sizes:
        for label, changes in settings(first.device):
            with changed(changes):
                backend = CudaBackend(0)
                backend._bf16 = True
                table.add(f"{name} body T={tokens}", label, body_us(backend, model, name, tokens, CONTEXT))
                backend.close()
            cp.get_default_memory_pool().free_all_blocks()


def main() -> None:
    table, words = Table(Path(sys.argv[1])), sys.argv[2:]
    sizes = [int(word) for word in words if word.isdigit()]
    names = [word for word in words if word in MODELS] or list(MODELS)
    if "bodies" in words:
        for name in names:
            time_bodies(table, name, sizes or [1])
        return
    device, pool = CudaDevice(0, CubinCache(default_cache())), random_bits(POOL)
    device.build(units(device))
    for shape in SHAPES:
        if shape.split()[0].lower() in names:
            time_shape(table, device, pool, shape, sizes or [1, 2])


if __name__ == "__main__":
    main()
