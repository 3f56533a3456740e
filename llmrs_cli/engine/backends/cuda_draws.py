"""Drawing tokens on the GPU and bringing them to the host without stopping either.

The sampler writes its results straight into pinned host memory; an event says when they are there. Buffers
are reused once they have been fetched.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import cupy as cp
import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.arrays import Array, Draws
from llmrs_cli.engine.backends.base import HEAD_ROWS
from llmrs_cli.engine.backends.cuda_memory import Arena
from llmrs_cli.engine.backends.cuda_rows import CudaStep
from llmrs_cli.kernels import sample as sampler
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.logprobs import logprobs
from llmrs_cli.kernels.sample import RowState, Scratch, sample

LEAST_WORDS = 1 << 12
"""Of a result's buffer: the same two or three serve all steps, so that few addresses are recorded."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Tokens on their way to the host: a handle for `fetch`."""

    memory: Any
    event: Any
    rows: int
    alternatives: int
    """-1: no log-probabilities"""
    targets: NDArray[np.int32] | None = None
    """Of a `score`: the ids are known."""
    lent: bool = False
    """The memory is not of the pool."""


@dataclass(slots=True)
class DrawPool:
    """Runs the sampler of one GPU and owns the pinned buffers of its results."""

    device: CudaDevice
    arena: Arena
    _free: list[Any] = field(default_factory=list)

    def sample(self, logits: Array, state: RowState, step: CudaStep, mask: Array | None) -> Drawn:
        """Enqueue one draw per row of (R, V) logits."""
        rows, vocab = logits.shape
        memory = self._take(words(rows, step.reports))
        if step.reports >= 0:
            raw = logits
            logits = self.arena.take("scores", (rows, vocab), cp.float32)
            logits[:] = raw
        self.launch(logits, state, step, memory.ptr, None if mask is None else cp.asarray(mask))
        if step.reports >= 0:
            logprobs(self.device, raw, memory.ptr, 2, _parts(memory.ptr, rows, step.reports), step.reports)
        return Drawn(memory, _event(), rows, step.reports)

    def launch(
        self, logits: Array, state: RowState, step: CudaStep, memory: int, mask: Array | None = None
    ) -> None:
        """Enqueue the sampler alone; tokens and flags go to the host address `memory`; 0: where the step says."""
        sample(
            self.device, self.device.multiprocessors, logits, step.sample_rows, step.sample_tokens,
            step.positions, state, self._scratch(*logits.shape), mask, memory, None if memory else step.result,
        )  # fmt: skip

    def launched(self, memory: Any, rows: int) -> Drawn:
        """What the step before drew, whose result is `memory`."""
        return Drawn(memory, _event(), rows, -1, lent=True)

    def score(self, logits: Array, targets: Array, alternatives: int) -> Drawn:
        """Enqueue the log-softmax of (P, V) logits at `targets` (P,)."""
        rows = len(targets)
        memory = self._take(words(rows, alternatives) + rows)
        logprobs(
            self.device, logits, targets.data.ptr, 1, _parts(memory.ptr, rows, alternatives), alternatives
        )
        return Drawn(memory, _event(), rows, alternatives, cp.asnumpy(targets))

    def fetch(self, drawn: Drawn) -> Draws:
        """Wait for the results and give their buffer back."""
        drawn.event.synchronize()
        rows, top = drawn.rows, max(drawn.alternatives, 0)
        found = np.frombuffer(drawn.memory, np.int32, words(rows, drawn.alternatives)).copy()
        if not drawn.lent:
            self._free.append(drawn.memory)
        ids, failed = found[: 2 * rows : 2], found[1 : 2 * rows : 2] != 0
        if drawn.alternatives < 0:
            none = np.zeros((rows, 0), np.float32)
            return Draws(ids, failed, np.zeros(rows, np.float32), none.view(np.int32), none)
        cuts = np.cumsum([2 * rows, rows, rows * top, rows * top, rows])
        _, at, top_ids, top_logprobs, invalid, _ = np.split(found, cuts)
        if drawn.targets is not None:
            ids, failed = drawn.targets, invalid != 0
        values = np.where(failed, np.float32(0), at.view(np.float32))
        tops = top_logprobs.view(np.float32).reshape(rows, top)
        return Draws(ids, failed, values, top_ids.reshape(rows, top), np.where(failed[:, None], 0, tops))

    def _scratch(self, rows: int, vocab: int) -> Scratch:
        """Room for the most rows from the first on, so that recordings last."""
        most = max(2 * self.device.multiprocessors, HEAD_ROWS)
        blocks = rows * sampler.blocks_for(rows, vocab, self.device.multiprocessors)

        def take(name: str, count: int, each: int, kind: Any, reserve: int = HEAD_ROWS) -> Any:
            return self.arena.take(f"sample {name}", (count * each,), kind, reserve=reserve * each)

        return Scratch(
            partials=take("partials", blocks, sampler.PARTIAL_WORDS, cp.int32, most),
            meeting=take("meeting", rows, sampler.MEETING_WORDS, cp.uint32),
            shortlists=take("shortlists", rows, sampler.LIST_WORDS, cp.int32),
        )

    def _take(self, count: int) -> Any:
        """A pinned buffer of at least `count` words."""
        for index, memory in enumerate(self._free):
            if memory.mem.size >= 4 * count:
                return self._free.pop(index)
        return cp.cuda.alloc_pinned_memory(4 * max(count, LEAST_WORDS))


def words(rows: int, alternatives: int) -> int:
    """Words of a result: token and flag of each row, then log-probabilities and alternatives if asked."""
    return 2 * rows if alternatives < 0 else rows * (4 + 2 * alternatives)


def _parts(base: int, rows: int, alternatives: int) -> tuple[int, int, int, int]:
    """Addresses of log-probabilities, alternatives, theirs, and NaN flags, after the tokens."""
    at = base + 8 * rows
    top_ids = at + 4 * rows
    top_logprobs = top_ids + 4 * rows * alternatives
    return at, top_ids, top_logprobs, top_logprobs + 4 * rows * alternatives


def _event() -> Any:
    """An event after all that is enqueued on the current stream."""
    event = cp.cuda.Event(disable_timing=True)
    event.record()
    return event
