"""The sampler alone: greedy, tempered and top-p over flat and peaked logits, at 1 and 64 rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np

from benchmarks.chain import chain_us
from benchmarks.variants.table import Table
from llmrs_cli.engine.arrays import StepBatch
from llmrs_cli.engine.backends.base import RowLimits
from llmrs_cli.engine.backends.cuda import CudaBackend
from llmrs_cli.engine.sampling import row_sampling
from llmrs_cli.engine.types import SamplingParams

VOCAB = 151936
KINDS = {
    "greedy": SamplingParams(max_tokens=1, temperature=0.0),
    "tempered": SamplingParams(max_tokens=1, temperature=0.8, seed=1),
    "top-p 0.95": SamplingParams(max_tokens=1, temperature=0.8, top_p=0.95, seed=1),
    "top-k 40": SamplingParams(max_tokens=1, temperature=0.8, top_k=40, seed=1),
    "top-k 40, top-p 0.95": SamplingParams(max_tokens=1, temperature=0.8, top_k=40, top_p=0.95, seed=1),
}


def time_kind(backend: CudaBackend, source: Any, params: SamplingParams) -> float:
    """Microseconds of one launch over a copy of the logits, less those of the copy: launches overwrite them."""
    rows = len(source)
    logits, memory = source.copy(), cp.cuda.alloc_pinned_memory(8 * rows)
    state = backend.open_rows(RowLimits(rows, 64, VOCAB))
    for row in range(rows):
        state.start(row, [1, 2, 3], row_sampling(params, 3, 0))
        state.grant(row, 0, [row])
    every, ones = np.arange(rows, dtype=np.int32), np.ones(rows, np.int32)
    step = state.begin(StepBatch(every, 2 * ones, ones, ones.astype(np.bool_), 0 * ones))
    cp.cuda.get_current_stream().synchronize()

    def draw() -> None:
        cp.copyto(logits, source)
        backend._draws.launch(logits, state.state, step, memory.ptr)

    return chain_us([draw]) - chain_us([lambda: cp.copyto(logits, source)])


def main() -> None:
    table = Table(Path(sys.argv[1]))
    backend = CudaBackend(0)
    for rows in (1, 8, 64, 256):
        for spread in (1.0, 4.0):
            source = cp.random.standard_normal((rows, VOCAB), dtype=cp.float32) * spread
            for kind, params in KINDS.items():
                table.add(f"{rows} rows, logits x {spread:g}", kind, time_kind(backend, source, params))
    backend.close()


if __name__ == "__main__":
    main()
