"""Short ways to write down a step's chunks and a row's sampling state in tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from llmrs_cli.engine.arrays import Ints, RowSampling, StepBatch

GREEDY = RowSampling(
    temperature=0.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    repetition_penalty=1.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    seed=0,
    choice=0,
    prompt_length=0,
    min_length=0,
    bias_ids=np.zeros(0, np.int32),
    bias_values=np.zeros(0, np.float32),
    stop_ids=np.zeros(0, np.int32),
    logprobs=-1,
)


def greedy(prompt: int = 0, **changes: Any) -> RowSampling:
    """Neutral sampling state of a row whose first `prompt` tokens are the prompt, with some changes."""
    return replace(GREEDY, prompt_length=prompt, **changes)


def batch(*chunks: tuple[int, int, int, bool] | tuple[int, int, int, bool, int]) -> StepBatch:
    """Chunks (row, start, count, samples[, scored]) as one StepBatch."""
    full = [(*chunk, 0)[:5] for chunk in chunks]
    columns = [np.array([chunk[i] for chunk in full], np.int32) for i in range(5)]
    return StepBatch(columns[0], columns[1], columns[2], columns[3].astype(np.bool_), columns[4])


def tokens(*ids: int) -> Ints:
    """Token ids as the array that rows hold."""
    return np.array(ids, np.int32)


def start_alike(seed: int, *tables: Any) -> None:
    """Start the same four rows, with blocks, in each of `tables` of at least 6 rows and 300 tokens."""
    rng = np.random.default_rng(seed)
    for row in (4, 0, 2, 5):
        known = rng.integers(0, 100, int(rng.integers(200, 300))).tolist()
        for rows in tables:
            rows.start(row, known, greedy())
            rows.grant(row, 0, [row * 5 + i for i in range(3)])
            rows.grant(row, 3, [row * 5 + i for i in (3, 4)])
