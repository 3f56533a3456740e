"""A model on a backend that reads given tokens in one pass and draws none: for comparing and for scoring.

No scheduler, no requests: one row, with key-value blocks of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrs_cli.engine.arrays import StepArrays, StepBatch
from llmrs_cli.engine.backends.base import Backend, RowLimits
from llmrs_cli.engine.backends.handles import ModelWeights
from llmrs_cli.engine.model.decoder import Body, run_body
from llmrs_cli.engine.model.spec import ModelSpec
from llmrs_cli.engine.sampling import row_sampling
from llmrs_cli.engine.types import SamplingParams
from llmrs_cli.engine.weights.checkpoint import Checkpoint
from llmrs_cli.engine.weights.load import Progress, load_model


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model on a backend."""

    backend: Backend
    model: ModelWeights
    spec: ModelSpec


def load(checkpoint: Checkpoint, backend: Backend, progress: Progress | None = None) -> Loaded:
    """`checkpoint` on `backend`. Raises what `load_model` does."""
    return Loaded(backend, load_model(checkpoint, backend, progress), checkpoint.spec)


class ForcedReader:
    """Reads texts of at most `length` tokens, one after the other."""

    def __init__(self, loaded: Loaded, length: int) -> None:
        backend, spec = loaded.backend, loaded.spec
        self._loaded = loaded
        self._blocks = -(-length // backend.block_size)
        self._rows = backend.open_rows(RowLimits(rows=1, context=length, vocab=spec.vocab))
        self._kv = backend.alloc_kv(spec.layers, self._blocks, spec.kv_heads, spec.head_dim)

    def read(self, ids: Sequence[int], ops: Any = None) -> tuple[Body, StepArrays]:
        """One pass of the decoder's body over all but the last of `ids`; each of those is scored against its successor.

        `ops`: what to call instead of the backend, such as a recorder of its results.
        """
        self._rows.start(0, ids, row_sampling(SamplingParams(max_tokens=1), len(ids), 0))
        self._rows.grant(0, 0, range(self._blocks))
        count = np.array([len(ids) - 1], np.int32)
        zero = np.zeros(1, np.int32)
        step = self._rows.begin(StepBatch(zero, zero, count, np.zeros(1, np.bool_), scored=count))
        body = run_body(self._loaded.backend if ops is None else ops, self._loaded.model, self._kv, step)
        return body, step
