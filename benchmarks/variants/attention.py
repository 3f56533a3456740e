"""Decode attention behind its projection: rotation in a kernel of its own and one even grid, or blocks for each sequence."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.chain import chain_us
from benchmarks.variants.steps import DecodeCase, decode_case
from benchmarks.variants.table import Table
from llmrs_cli.kernels import attend_decode, attend_few
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.loader import CubinCache, default_cache

HEADS = {"7b": (28, 4, 128), "3b": (16, 2, 128), "0.5b": (14, 2, 64)}
"""Query heads, key heads, and their size."""


def uneven(low: int, high: int) -> tuple[int, ...]:
    """64 contexts, all lengths alike."""
    return tuple(np.random.default_rng(0).permutation(np.linspace(low, high, 64).astype(int)).tolist())


STEPS = {
    "64 x 320": (320,) * 64,
    "64 of 20 to 620": uneven(20, 620),
    "64 of 100 to 1500": uneven(100, 1500),
    "63 x 320, 1 x 1000": (320,) * 63 + (1000,),
    "63 x 320, 1 x 4096": (320,) * 63 + (4096,),
    "128 x 320": (320,) * 128,
    "256 x 320": (320,) * 256,
    "32 x 320": (320,) * 32,
    "16 x 384": (384,) * 16,
    "8 x 4096": (4096,) * 8,
    "1 x 300": (300,),
    "1 x 2000": (2000,),
    "1 x 8192": (8192,),
    "1 x 32768": (32768,),
}
KV_BYTES = 800_000_000
STAGES = {128: (2, 3), 64: (4, 2)}
"""The default first."""


def variants(
    device: CudaDevice, case: DecodeCase, contexts: Sequence[int]
) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Rotation and even grid first, then every number of blocks of which all run at once, and one even where not."""
    yield "two kernels", case.two_kernels
    kv_heads = case.kv[0][0].shape[1]
    for blocks in attend_few.sizes(case.d, device.loader.arch, little=False):
        if blocks > 1 and len(contexts) * kv_heads * blocks > 2 * device.multiprocessors:
            continue
        plan = attend_few.default_plan(case.d, blocks, little=False)
        for stages in STAGES[case.d]:
            yield (
                f"{blocks} blocks, {stages} stages",
                partial(case.one_kernel, plan=replace(plan, stages=stages)),
            )


def time_step(table: Table, device: CudaDevice, model: str, name: str) -> None:
    contexts, (heads, kv_heads, d) = STEPS[name], HEADS[model]
    copies = max(1, min(28, KV_BYTES // (sum(contexts) * kv_heads * d * 4)))
    case = decode_case(device, contexts, heads, kv_heads, d, copies)
    shares = attend_decode.grid_blocks(device.multiprocessors, d) // kv_heads
    sizes = attend_few.sizes(d, device.loader.arch, little=False)
    chosen = attend_few.choose(sizes, shares, len(contexts), max(contexts), sum(contexts))
    for variant, launch in variants(device, case, contexts):
        us = chain_us([partial(launch, layer) for layer in range(copies)])
        default = f"{chosen} blocks, {STAGES[d][0]} stages" if chosen else "two kernels"
        table.add(f"{model} {name}", variant, us, "chosen" if variant == default else "")


def main() -> None:
    table = Table(Path(sys.argv[1]))
    device = CudaDevice(0, CubinCache(default_cache()))
    for model, (_, _, d) in HEADS.items():
        plan = attend_few.default_plan(d, 1, little=False)
        device.build([attend_few.unit(True, d, replace(plan, stages=stages)) for stages in STAGES[d]])
        for name in STEPS:
            time_step(table, device, model, name)


if __name__ == "__main__":
    main()
