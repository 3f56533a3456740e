"""Arrays that pass between runner and backend, with a shape on every field.

Letters: T tokens in this step, S sequences (chunks) in this step, R rows that draw a token, P tokens
that are scored, MB blocks of the longest table, V vocabulary, L alternatives reported.

`StepBatch` and `RowSampling` are NumPy on the host. `StepArrays` holds the backend's own array type.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = Any
"""An array of the backend: NumPy for `reference` and `cpu`, CuPy for `cuda`."""
Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RowSampling:
    """Sampling state of one row, set when a sequence takes it; `engine.sampling` makes it."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    """64-bit key of the random stream."""
    choice: int
    prompt_length: int
    min_length: int
    """Row length, in tokens, below which `stop_ids` may not be drawn (prompt + min_tokens)."""
    bias_ids: Ints
    bias_values: Floats
    stop_ids: Ints
    logprobs: int
    """-1: none; else the number of alternatives beside the drawn token."""


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step's chunks: tokens starts[s] … starts[s] + counts[s] - 1 of row rows[s]."""

    rows: Ints
    """(S,)"""
    starts: Ints
    """(S,) position of the chunk's first token"""
    counts: Ints
    """(S,) at least 1"""
    samples: NDArray[np.bool_]
    """(S,) draws a token after its last one"""
    scored: Ints
    """(S,) leading tokens that are scored against their successors"""


@dataclass(frozen=True, slots=True)
class StepArrays:
    """A staged step as the ops of a backend read it; a backend may subclass it."""

    ids: Array
    """(T,) i32 input token ids, gathered from the token pool"""
    positions: Array
    """(T,) i32 position of each token in its row"""
    slots: Array
    """(T,) i32 where a token's key and value go: block · block_size + offset"""
    query_start: Array
    """(S+1,) i32 first token of each sequence in this step, then T"""
    context_lens: Array
    """(S,) i32 tokens of the sequence after this step's store"""
    block_tables: Array
    """(S, MB) i32, padded with -1"""
    sample_tokens: Array
    """(R,) i32 index into T of the tokens whose logits are drawn from"""
    sample_rows: Array
    """(R,) i32 the row that the drawn token belongs to"""
    scored_tokens: Array
    """(P,) i32 index into T"""
    scored_targets: Array
    """(P,) i32 the prompt token that follows each scored token"""

    @property
    def key(self) -> Hashable:
        """What a recording of this step's launches depends on: its sizes."""
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Draws:
    """Tokens drawn by one step, on the host."""

    ids: Ints
    """(R,)"""
    failed: NDArray[np.bool_]
    """(R,) the logits held a NaN or nothing finite"""
    logprobs: Floats
    """(R,) log-softmax of the raw logits at ids; 0 where not asked"""
    top_ids: Ints
    """(R, L) best first, lower id first on ties"""
    top_logprobs: Floats
    """(R, L)"""
