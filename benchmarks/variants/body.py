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

SIZES = {
    "7b": (1, 2, 4, 8, 12, 16, 64, 128, 192, 256, 512, 1024),
    "3b": (1, 4, 8, 12, 16, 64, 128, 192, 256, 512, 1024),
    "0.5b": (1, 4, 8, 12, 16, 64, 128, 192, 256, 512, 1024),
}
"""Tokens of a step; of more than 64, 64 decode and the others are a prompt's chunk."""
CONTEXT = 320
PROMPT = 2048


def settings(tokens: int) -> Iterator[tuple[str, Paths]]:
    yield "as measured", MEASURED
    if tokens <= 2:
        yield "no rows", replace(MEASURED, rows=False)
    if tokens <= 64:
        yield "no clusters in attention", replace(MEASURED, few_attend=False)
    if tokens > 2:
        yield "linear_small and cuBLASLt", replace(MEASURED, wide=lambda *_: None)


def time_prompts(table: Table, model: ModelWeights, name: str) -> None:
    """A prompt of 2,048 tokens."""
    for setting, paths in (
        ("as measured", MEASURED),
        ("attend_prefill", replace(MEASURED, prompt_tokens=0)),
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
            decodes = min(tokens, 64)
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
