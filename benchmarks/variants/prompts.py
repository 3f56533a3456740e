"""Attention of prompts: attend_prefill, and attend_prompt in every shape, checked against it. Half a minute on an H200.

A step of 64 that decode and a prompt's chunk shows the kernel of the chunk alone: the other one runs beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np

from benchmarks.chain import chain_us, from_bits, random_bits
from benchmarks.variants.attention import HEADS
from benchmarks.variants.steps import ints
from benchmarks.variants.table import Table
from llmrs_cli.kernels import attend_prefill, attend_prompt
from llmrs_cli.kernels.attend_prefill import TILE
from llmrs_cli.kernels.attend_prompt import PromptShape
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.loader import CubinCache, default_cache

Chunks = Sequence[tuple[int, int]]
"""(queries, tokens in all) of each sequence."""
STEPS: dict[str, Chunks] = {
    "1 x 8192": ((8192, 8192),),
    "4 x 2048": ((2048, 2048),) * 4,
    "16 x 2048": ((2048, 2048),) * 16,
    "1 x 1200": ((1200, 1200),),
    "1 x 300": ((300, 300),),
    "64 + 128": (*((1, 320),) * 64, (128, 128)),
    "64 + 960": (*((1, 320),) * 64, (960, 2048)),
    "128 behind 8064": ((128, 8192),),
}
SHAPES = {
    "2 x 64 rows, 128 keys": PromptShape(2, 128, 2),
    "2 x 64 rows, 128 keys, no turns": PromptShape(2, 128, 2, turns=False),
    "2 x 64 rows, 64 keys": PromptShape(2, 64, 4),
    "3 x 64 rows, 64 keys": PromptShape(3, 64, 3),
}
LIMIT = 1e-2
"""Relative error of two results that are each rounded to bf16."""


@dataclass(slots=True)
class PromptCase:
    """Chunks of prompts over random caches."""

    device: CudaDevice
    q: Any
    keys: Any
    values: Any
    fixed: list[Any]
    """tables, rows, contexts, query_start, first_tile"""
    tiles: int
    flops: float

    def old(self, out: Any) -> None:
        _, _, d = self.q.shape
        attend_prefill.attend_prefill(
            self.device, True, self.q, self.keys, self.values, *self.fixed, out, tiles=self.tiles, scale=d**-0.5,
            shape=attend_prefill.shape_for(d),
        )  # fmt: skip

    def new(self, out: Any, drawn: Any, shape: PromptShape) -> None:
        attend_prompt.attend_prompt(
            self.device, True, self.q, self.keys, self.values, *self.fixed, out, drawn, tiles=self.tiles,
            multiprocessors=self.device.multiprocessors, scale=self.q.shape[2] ** -0.5, shape=shape,
        )  # fmt: skip


def prompt_case(device: CudaDevice, chunks: Chunks, heads: int, kv_heads: int, d: int) -> PromptCase:
    counts, contexts = np.array(chunks).T
    pages = -(-contexts // 64)
    order = np.random.default_rng(0).permutation(pages.sum())
    tables, cut = np.full((len(chunks), pages.max()), -1, np.int32), np.cumsum([0, *pages])
    for row, own in enumerate(pages):
        tables[row, :own] = order[cut[row] : cut[row + 1]]
    tiles = np.cumsum([0, *np.where(counts == 1, 0, -(-counts // TILE))])
    size = int(pages.sum()) * kv_heads * 64 * d
    keys, values = (random_bits(size, 1.0).reshape(-1, kv_heads, 64, d) for _ in range(2))
    many = counts > 1
    seen = (counts * contexts - counts * (counts - 1) / 2)[many].sum()
    return PromptCase(
        device, random_bits(int(counts.sum()) * heads * d, 1.0).reshape(-1, heads, d), keys, values,
        [cp.asarray(tables), ints(range(len(chunks))), ints(contexts), ints([0, *np.cumsum(counts)]), ints(tiles)],
        1 << (int(tiles[-1]) - 1).bit_length(), float(4 * d * heads * seen),
    )  # fmt: skip


def variants(case: PromptCase) -> Iterator[tuple[str, Callable[[Any], None]]]:
    yield "attend_prefill", case.old
    if attend_prompt.serves(case.q.shape[2], case.device.loader.arch):
        drawn = cp.zeros(1, cp.int32)
        for name, shape in SHAPES.items():
            yield name, lambda out, shape=shape: case.new(out, drawn, shape)


def time_step(table: Table, device: CudaDevice, model: str, name: str) -> None:
    heads, kv_heads, d = HEADS[model]
    case = prompt_case(device, STEPS[name], heads, kv_heads, d)
    wanted = None
    for variant, launch in variants(case):
        out = cp.zeros((len(case.q), heads * d), cp.uint16)
        launch(out)
        if wanted is None:
            wanted = from_bits(out)
        error = float(cp.linalg.norm(from_bits(out) - wanted) / cp.linalg.norm(wanted))
        us = chain_us([lambda launch=launch, out=out: launch(out)], total=4 if case.flops > 3e10 else 28)
        verdict = "ok" if error < LIMIT else "FAIL"
        table.add(
            f"{model} {name}",
            variant,
            us,
            f"{case.flops / us / 1e6:.0f} TFLOP/s, error {error:.1e} {verdict}",
        )


def main() -> None:
    table = Table(Path(sys.argv[1]))
    device = CudaDevice(0, CubinCache(default_cache()))
    if device.loader.arch == "sm_90a":
        device.build([attend_prompt.unit(True, d, shape) for d in (64, 128) for shape in SHAPES.values()])
    for model in HEADS:
        for name in STEPS:
            time_step(table, device, model, name)
            cp.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
