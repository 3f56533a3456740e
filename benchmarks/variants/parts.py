"""Where the body of a step goes, launch by launch, at the sizes that throughput is made of: medians over the layers.

    python3 -m benchmarks.variants.parts OUT.json [7b …] [64+128 …]

As `llmrs bench -s profile` does for decode steps: recordings are cut after each launch, and what one more adds is its time.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import replace
from pathlib import Path

import cupy as cp

from benchmarks.random_models import random_model
from benchmarks.variants.steps import run_of_body
from benchmarks.variants.table import Table
from llmrs_cli.bench.profile import marginal
from llmrs_cli.engine.backends.cuda import CudaBackend

CASES = ((1, 0), (64, 0), (64, 128), (64, 448))
"""Sequences that decode, and tokens of a prompt's chunk beside them."""
CONTEXT, LAYERS = 320, 6
"""Enough layers that weights come from memory, and no more, since each launch costs a recording."""


def time_parts(table: Table, name: str, decodes: int, prompt: int) -> None:
    backend = CudaBackend(0)
    model = random_model(backend, name, CONTEXT + prompt)
    model = replace(model, layers=model.layers[:LAYERS])
    run = run_of_body(backend, model, name, decodes, CONTEXT, prompt)
    parts = marginal(cp.cuda.get_current_stream(), run, type(backend.device))
    whole = sum(seconds for _, seconds in parts)
    lead = len(parts) % LAYERS
    each = len(parts) // LAYERS
    for at in range(lead, lead + each):
        us = statistics.median(seconds for _, seconds in parts[at::each]) * 1e6
        table.add(f"{name} {decodes}+{prompt} {at - lead}", parts[at][0], us)
    table.add(f"{name} {decodes}+{prompt}", "a layer", whole * 1e6 / LAYERS)
    backend.close()


def main() -> None:
    table = Table(Path(sys.argv[1]))
    cases = [tuple(map(int, pair.split("+"))) for pair in sys.argv[2:] if "+" in pair] or CASES
    for name in [name for name in sys.argv[2:] if "+" not in name] or ["7b", "3b", "0.5b"]:
        for decodes, prompt in cases:
            time_parts(table, name, decodes, prompt)
            cp.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
