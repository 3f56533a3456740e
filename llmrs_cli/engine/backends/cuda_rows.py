"""Row state on the GPU: token pool, block tables, sampling state; and what a step needs, staged in two launches.

The host packs a step's row edits and index arrays into a pinned buffer as runs of words, each with its
address; `scatter` puts them in place, `gather` then reads ids and slots from the state. A step's arrays
stand at fixed addresses, so that a recorded graph finds them again. Nothing here computes logits.
"""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cupy as cp
import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.arrays import Ints, RowSampling, StepArrays, StepBatch
from llmrs_cli.engine.backends.base import HEAD_ROWS, RowLimits, Rows
from llmrs_cli.engine.backends.cuda_memory import Arena, PinnedRing, Turns
from llmrs_cli.engine.backends.cuda_staging import PAGE, Staged, StepKey, cuts, stage
from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.count_tokens import count_tokens
from llmrs_cli.kernels.gather import gather
from llmrs_cli.kernels.launch import Device, ceil_div
from llmrs_cli.kernels.sample import MAX_BIASES, MAX_STOPS, STATE_WORDS, RowState
from llmrs_cli.kernels.scatter import MOST_RUNS, RUN_WORDS, scatter

RESERVED_WORDS = 1 << 16
"""Room for the arrays of a step, so that they rarely move."""
RING_BYTES = 1 << 20
KNOWN_STEPS = 1024
"""Sizes of steps whose arrays are kept."""
_SAMPLING = struct.Struct(f"6f9I{4 * (STATE_WORDS - 15)}x")


Run = tuple[int, NDArray[Any]]
"""An address of the GPU, and what is to be written from there on: 32-bit words, contiguous."""


@dataclass(frozen=True, slots=True)
class CudaStep(StepArrays):
    """A staged step; ids, positions and slots are padded to `padded(T)`, sequence arrays to all rows."""

    table_rows: Any
    """(rows,) i32 row of each sequence"""
    first_page: Any
    """(rows + 2,) i32 pages of the sequences with one query before each; then pages of a chunk"""
    first_tile: Any
    """(rows + 1,) i32 tiles of the sequences with more queries before each"""
    tiles: int
    """Tiles to launch, as in `Staged`; 0: no prompts"""
    decodes: bool
    """Some sequence has one query"""
    few: int
    """Blocks for each of their key heads in `attend_few`; 0: `attend_decode` serves them"""
    reached: int
    """Sequences that it looks at to meet all of them"""
    reports: int
    """Alternatives to report beside drawn tokens; -1: no log-probabilities"""

    words: Any
    """All index arrays of the step, as they were staged"""
    result: Any
    """(2,) i32 address in the host's memory of what the step draws"""
    token_rows: Any
    """(T,) i32 row of each token, NO_ROW in the padding"""
    pool: Any
    """(rows, P) i32 tokens of every row"""
    drawing: tuple[Any, Any] | None
    """i32 `sample_tokens` and `sample_rows` padded to a size of which there are few, NO_ROW in the padding, at the same
    places in every step; None where there are more of them than a head takes at once"""

    @property
    def key(self) -> StepKey:
        return StepKey(self.ids.size, self.tiles, self.decodes, self.few)

    def gather(self, device: Device, scores: int = 0) -> None:
        """Fill ids and slots from the row state, and the targets of `scores` tokens.

        The first launch of a body. A recorded one fills no targets: their number is not in the key.
        """
        gather(
            device, self.pool, self.block_tables, self.token_rows, self.positions, self.ids, self.slots,
            self.scored_tokens[:scores], self.scored_targets[:scores],
        )  # fmt: skip


class CudaRows(Rows):
    """`Rows` on the GPU."""

    def __init__(
        self,
        limits: RowLimits,
        device: Device,
        arena: Arena,
        stream: Any,
        shares: int,
        fixed: bool = False,
        few: Sequence[int] = (),
    ) -> None:
        """`shares`: blocks of decode attention for each key head; `fixed` and `few` as in `stage`."""
        self.limits = limits
        self._arena = arena
        self._stream = stream
        self._shares = shares
        self._fixed = fixed
        self._few = few
        self._device = device
        width = ceil_div(limits.context, PAGE)
        rows = limits.rows
        self.tables = cp.zeros((rows, width), cp.int32)
        self.state = RowState(
            sampling=cp.zeros((rows, STATE_WORDS), cp.int32),
            bias_ids=cp.zeros((rows, MAX_BIASES), cp.int32),
            bias_values=cp.zeros((rows, MAX_BIASES), cp.float32),
            stop_ids=cp.zeros((rows, MAX_STOPS), cp.int32),
            counts=cp.zeros((rows, ceil_div(limits.vocab, 2) * 2), cp.uint16),
            pool=cp.zeros((rows, limits.context + 1), cp.int32),
        )
        self._reporting: dict[int, int] = {}
        """Alternatives to report, of the rows that want log-probabilities."""
        self._blocks: Ints = np.zeros((rows, width), np.int32)
        self._starts: dict[int, tuple[Ints, RowSampling]] = {}
        self._granted: dict[int, tuple[int, int]] = {}
        self._ring = PinnedRing(RING_BYTES)
        self.results = Turns(8 * HEAD_ROWS)
        """Where a step's tokens and flags land."""
        self._steps: dict[tuple[Any, ...], CudaStep] = {}

    # -- edits ------------------------------------------------------------------------------------------

    def start(self, row: int, tokens: Sequence[int], sampling: RowSampling) -> None:
        if len(sampling.bias_ids) > MAX_BIASES or len(sampling.stop_ids) > MAX_STOPS:
            raise EngineFault(f"A row holds at most {MAX_BIASES} biases and {MAX_STOPS} stop ids.")
        self._starts[row] = np.asarray(tokens, np.int32), sampling
        self._reporting.pop(row, None)
        if sampling.logprobs >= 0:
            self._reporting[row] = sampling.logprobs

    def grant(self, row: int, first: int, blocks: Sequence[int]) -> None:
        end = first + len(blocks)
        self._blocks[row, first:end] = blocks
        low, high = self._granted.get(row, (first, end))
        self._granted[row] = min(low, first), max(high, end)

    def _edits(self) -> list[Run]:
        """What has changed since the last step."""
        state = self.state
        runs: list[Run] = []
        for row, (tokens, sampling) in self._starts.items():
            runs += [
                (_place(state.pool, row), tokens),
                (_place(state.sampling, row), sampling_words(sampling)),
                (_place(state.bias_ids, row), sampling.bias_ids),
                (_place(state.bias_values, row), sampling.bias_values),
                (_place(state.stop_ids, row), sampling.stop_ids),
            ]
        for row, (low, high) in self._granted.items():
            runs.append((_place(self.tables, row, low), self._blocks[row, low:high]))
        return runs

    def _counted(self) -> list[tuple[int, int, int]]:
        """Rows whose penalty counts start anew: row, tokens known, tokens of the prompt."""
        return [
            (row, len(tokens), sampling.prompt_length)
            for row, (tokens, sampling) in self._starts.items()
            if penalises(sampling)
        ]

    # -- steps ------------------------------------------------------------------------------------------

    def begin(self, batch: StepBatch) -> CudaStep:
        self._stream.use()
        staged = stage(batch, self.limits.rows, self._shares, self._fixed, self._few)
        step = self._step(staged, self._reports(batch))
        runs = self._edits()
        counted = self._counted()
        if counted:
            starts = self._arena.take("starts", (len(counted), 3), np.int32)
            runs.append((starts.data.ptr, np.array(counted, np.int32).reshape(-1)))
        staged.words[:2].view(np.uint64)[0] = self.results.next().ptr
        runs.append((step.words.data.ptr, staged.words))
        self._send(runs)
        self._starts, self._granted = {}, {}
        if staged.sizes.scored:
            step.gather(self._device, staged.sizes.scored)
        if counted:
            count_tokens(self._device, starts, self.state.pool, self.state.counts)
        return step

    def _reports(self, batch: StepBatch) -> int:
        """Alternatives to report beside the tokens that a step draws; -1: no row wants log-probabilities."""
        asked = self._reporting
        if not asked:
            return -1
        return max((asked.get(row, -1) for row in batch.rows[batch.samples].tolist()), default=-1)

    def _step(self, staged: Staged, reports: int) -> CudaStep:
        """The arrays of a step: the same ones for equal sizes, as long as no buffer moves.

        Only what varies freely moves at a given padded token count, and no recorded body reads it.
        """
        shape = staged.tiles, staged.decodes, staged.few, staged.drawn
        key = staged.sizes, *shape, reports, self._arena.generation
        step = self._steps.get(key)
        if step is None:
            if len(self._steps) >= KNOWN_STEPS:
                self._steps.clear()
            step = self._cut(staged, reports)
            self._steps[*key[:-1], self._arena.generation] = step
        return step

    def _cut(self, staged: Staged, reports: int) -> CudaStep:
        sizes, samples = staged.sizes, staged.sizes.samples
        at, length = cuts(sizes)
        whole = self._arena.take("step", (length,), np.int32, reserve=RESERVED_WORDS)
        part = {name: whole[where] for name, where in at.items()}
        tokens, rows = part["sample_tokens"], part["sample_rows"]
        ids, slots, targets = (
            self._arena.take(name, (size,), np.int32, reserve=RESERVED_WORDS)
            for name, size in (("ids", sizes.tokens), ("slots", sizes.tokens), ("targets", sizes.scored))
        )
        return CudaStep(
            ids=ids,
            positions=part["positions"],
            slots=slots,
            query_start=part["query_start"],
            context_lens=part["contexts"],
            block_tables=self.tables,
            sample_tokens=tokens[: staged.drawn],
            sample_rows=rows[: staged.drawn],
            scored_tokens=part["scored_tokens"],
            scored_targets=targets,
            table_rows=part["table_rows"],
            first_page=part["first_page"],
            first_tile=part["first_tile"],
            tiles=staged.tiles,
            decodes=staged.decodes,
            few=staged.few,
            reached=staged.reached,
            reports=reports,
            words=whole,
            result=part["result"],
            token_rows=part["token_rows"],
            pool=self.state.pool,
            drawing=None if staged.drawn > HEAD_ROWS else (tokens[:samples], rows[:samples]),
        )

    def _send(self, runs: Sequence[Run]) -> None:
        """Enqueue the copy of all runs; they do not overlap, so their order is free."""
        runs = [run for run in runs if run[1].size]
        table: list[int] = []
        size = 0
        for address, words in runs:
            table += address & 0xFFFFFFFF, address >> 32, size, words.size
            size += words.size
        data = b"".join([array("I", table), *(words.data for _, words in runs)])
        if self._ring.size < len(data):
            cp.cuda.get_current_stream().synchronize()  # the GPU may still read the old one
            self._ring = PinnedRing(2 * len(data))
        index, memory = self._ring.take()
        ctypes.memmove(memory.ptr, data, len(data))
        for first in range(0, len(table), RUN_WORDS * MOST_RUNS):
            part = table[first : first + RUN_WORDS * MOST_RUNS]
            places = memory.ptr + 4 * first, memory.ptr + 4 * len(table)
            scatter(self._device, *places, len(part) // RUN_WORDS, part[2], part[-2] + part[-1])
        self._ring.used(index)


def sampling_words(sampling: RowSampling) -> Ints:
    """The row's state as sample.cu reads it: six floats, then integers."""
    s = sampling
    packed = _SAMPLING.pack(
        s.temperature, s.top_p, s.min_p, s.repetition_penalty, s.presence_penalty, s.frequency_penalty,
        s.top_k, s.prompt_length, s.min_length, s.choice, s.seed & 0xFFFFFFFF, s.seed >> 32,
        len(s.bias_ids), len(s.stop_ids), penalises(s),
    )  # fmt: skip
    return np.frombuffer(packed, np.int32)


def penalises(sampling: RowSampling) -> bool:
    """Whether the row's counts matter."""
    return bool(sampling.repetition_penalty != 1.0 or sampling.presence_penalty or sampling.frequency_penalty)


def _place(state: Any, row: int, column: int = 0) -> int:
    """Address of an entry of a (rows, N) array of 32-bit words."""
    address: int = state.data.ptr + 4 * (row * state.shape[1] + column)
    return address
