"""Whole bodies of a step as recorded graphs, one for each setting of the switch between kernels."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cupy as cp

from benchmarks.random_models import random_model
from benchmarks.variants.steps import body_us
from benchmarks.variants.table import Table
from llmrs_cli.engine.backends.cuda import CudaBackend
from llmrs_cli.engine.backends.cuda_dense import MEASURED, Paths
from llmrs_cli.engine.backends.handles import ModelWeights

SIZES = {"7b": (1, 64, 192, 2, 4, 8, 16, 32, 96, 128, 256), "0.5b": (1, 64, 192, 2, 8, 16, 32, 256)}
"""Tokens of a step; more than 128 but for 256 are 64 that decode and a prompt's chunk."""
CONTEXT = 320
PROMPT = 8192


def settings(tokens: int) -> Iterator[tuple[str, Paths]]:
    yield "as measured", MEASURED
    waits, turned = replace(MEASURED, held=8), replace(MEASURED, rope_in_attention=True)
    yield "rope in attention", turned
    if tokens <= 8:
        both = replace(waits, rope_in_attention=True)
        yield "sums wait", waits
        yield "sums wait, rope in attention", both
        yield "the same, half the blocks", replace(both, attention_blocks=1)
        if tokens <= 2:
            yield "rows, rope in attention", replace(both, rows_tokens=2)
            yield "the same, half the blocks in att.", replace(both, rows_tokens=2, attention_blocks=1)
    else:
        middle = replace(turned, mid_tokens=range(9, 257))
        yield "middle, 128 rows", middle
        yield "middle, 128 rows, even", replace(middle, mid_even=True)
        yield "middle, 256 rows", replace(middle, mid_warps=16)
        yield "middle, 256 rows, even", replace(middle, mid_warps=16, mid_even=True)


def time_prompts(table: Table, model: ModelWeights, name: str) -> None:
    """A chunk of 8,192 tokens of one prompt."""
    for setting, paths in (
        ("as measured", MEASURED),
        ("two tiles a block", replace(MEASURED, two_tiles=True)),
    ):
        backend = CudaBackend(0, paths=paths)
        backend._bf16 = True
        us = body_us(backend, model, name, 0, 1, PROMPT)
        table.add(f"{name} body of a prompt", setting, us, f"{PROMPT / us * 1e6:.0f} tokens a second")
        backend.close()


def time_model(table: Table, name: str) -> None:
    first = CudaBackend(0)
    model: ModelWeights = random_model(first, name, 4096)
    for tokens in SIZES[name]:
        for setting, paths in settings(tokens):
            backend = CudaBackend(0, paths=paths)
            backend._bf16 = True
            decodes = 64 if 128 < tokens < 256 else tokens
            us = body_us(backend, model, name, decodes, CONTEXT, tokens - decodes)
            table.add(f"{name} body T={tokens}", setting, us)
            backend.close()
            del backend
            cp.get_default_memory_pool().free_all_blocks()
    time_prompts(table, model, name)


def main() -> None:
    table = Table(Path(sys.argv[1]))
    for name in SIZES:
        time_model(table, name)
        cp.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
