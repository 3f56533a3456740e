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

SIZES = {"7b": (1, 2, 8, 16, 64, 128, 192, 256), "3b": (1, 8, 64, 192), "0.5b": (1, 8, 64, 192)}
"""Tokens of a step; more than 128 but for 256 are 64 that decode and a prompt's chunk."""
CONTEXT = 320
PROMPT = 8192


def settings(tokens: int) -> Iterator[tuple[str, Paths]]:
    yield "as measured", MEASURED
    if tokens <= 2:
        yield "no rows", replace(MEASURED, rows=False)
    if tokens <= 8:
        yield "no clusters in attention", replace(MEASURED, few_attend=False)
    if tokens > 16:
        yield "wide silu", replace(MEASURED, wide_silu=range(17, 257))


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
    model: ModelWeights = random_model(first, name, PROMPT)
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
