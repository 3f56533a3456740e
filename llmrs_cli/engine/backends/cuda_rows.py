"""Row state on the GPU: token pool, block tables, sampling state; and what a step needs, staged in two launches.

The host packs a step's row edits and index arrays into a pinned buffer as runs of words, each with its
address; `scatter` puts them in place, `gather` then reads ids and slots from the state. A step's arrays
stand at fixed addresses, so that a recorded graph finds them again. Nothing here computes logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cupy as cp
import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.arrays import Ints, RowSampling, StepArrays, StepBatch
from llmrs_cli.engine.backends.base import RowLimits, Rows
from llmrs_cli.engine.backends.cuda_memory import Arena, PinnedRing
from llmrs_cli.engine.backends.rows import expand
from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.count_tokens import count_tokens
from llmrs_cli.kernels.gather import gather
from llmrs_cli.kernels.launch import Device, ceil_div
from llmrs_cli.kernels.sample import MAX_BIASES, MAX_STOPS, STATE_WORDS, RowState
from llmrs_cli.kernels.scatter import RUN_WORDS, scatter

PAGE = 64
PREFILL_QUERIES = 64
"""Queries of one tile of prefill attention."""
PADDED = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)
"""Token counts that a step is padded to, so that few graphs serve all; larger ones in steps of 256."""
RESERVED_TOKENS = 1 << 14
"""Room of a step array, in words, so that it rarely moves."""
RING_BYTES = 1 << 20


def padded(tokens: int) -> int:
    """The size that a step of `tokens` tokens runs at."""
    return next((size for size in PADDED if size >= tokens), ceil_div(tokens, 256) * 256)


@dataclass(frozen=True, slots=True)
class Run:
    """Words to be written from the start of a device array on."""

    target: Any
    words: NDArray[Any]
    """32-bit, contiguous"""


@dataclass(frozen=True, slots=True)
class CudaStep(StepArrays):
    """A staged step; ids, positions and slots are padded to `padded(T)`, sequence arrays to all rows."""

    table_rows: Any
    """(rows,) i32 row of each sequence"""
    first_page: Any
    """(rows + 1,) i32 pages of the sequences with one query before each"""
    first_tile: Any
    """(rows + 1,) i32 tiles of the sequences with more queries before each"""
    tiles: int
    """Tiles to launch, a power of two, or 0"""
    decodes: bool
    """Some sequence has one query"""
    reports: int
    """Alternatives to report beside drawn tokens; -1: no log-probabilities"""
    tokens: int
    """T, without padding"""

    @property
    def key(self) -> tuple[int, int, bool]:
        return self.ids.size, self.tiles, self.decodes


class CudaRows(Rows):
    """`Rows` on the GPU."""

    def __init__(self, limits: RowLimits, device: Device, arena: Arena, stream: Any) -> None:
        self.limits = limits
        self._arena = arena
        self._stream = stream
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
        self._logprobs: Ints = np.full(rows, -1, np.int32)
        self._blocks: Ints = np.zeros((rows, width), np.int32)
        self._starts: dict[int, tuple[Ints, RowSampling]] = {}
        self._granted: dict[int, tuple[int, int]] = {}
        self._ring = PinnedRing(RING_BYTES)

    # -- edits ------------------------------------------------------------------------------------------

    def start(self, row: int, tokens: Sequence[int], sampling: RowSampling) -> None:
        if len(sampling.bias_ids) > MAX_BIASES or len(sampling.stop_ids) > MAX_STOPS:
            raise EngineFault(f"A row holds at most {MAX_BIASES} biases and {MAX_STOPS} stop ids.")
        self._starts[row] = np.asarray(tokens, np.int32), sampling
        self._logprobs[row] = sampling.logprobs

    def grant(self, row: int, first: int, blocks: Sequence[int]) -> None:
        end = first + len(blocks)
        self._blocks[row, first:end] = blocks
        low, high = self._granted.get(row, (first, end))
        self._granted[row] = min(low, first), max(high, end)

    def _edits(self) -> Iterator[Run]:
        """What has changed since the last step."""
        state = self.state
        for row, (tokens, sampling) in self._starts.items():
            yield Run(state.pool[row], tokens)
            yield Run(state.sampling[row], sampling_words(sampling))
            yield Run(state.bias_ids[row], sampling.bias_ids)
            yield Run(state.bias_values[row], sampling.bias_values)
            yield Run(state.stop_ids[row], sampling.stop_ids)
        for row, (low, high) in self._granted.items():
            yield Run(self.tables[row, low:], self._blocks[row, low:high])

    def _counted(self) -> Ints:
        """(N, 3) rows whose penalty counts start anew: row, tokens known, tokens of the prompt."""
        counted = [
            (row, len(tokens), sampling.prompt_length)
            for row, (tokens, sampling) in self._starts.items()
            if penalises(sampling)
        ]
        return np.array(counted, np.int32).reshape(-1, 3)

    # -- steps ------------------------------------------------------------------------------------------

    def begin(self, batch: StepBatch) -> CudaStep:
        self._stream.use()
        arrays = self._host_arrays(batch)
        counted = self._counted()
        device = {name: self._take(name, words.size) for name, words in arrays.items()}
        starts = self._take("starts", counted.size)
        places = [Run(device[name], words) for name, words in arrays.items()]
        self._send([*self._edits(), *places, Run(starts, counted.reshape(-1))])
        self._starts, self._granted = {}, {}
        size = arrays["positions"].size
        ids, slots = (self._take(name, size) for name in ("ids", "slots"))
        targets = self._take("targets", arrays["scored_tokens"].size)
        gather(
            self._device, self.state.pool, self.tables, device["token_rows"], device["positions"], ids, slots,
            device["scored_tokens"], targets,
        )  # fmt: skip
        count_tokens(self._device, starts.reshape(-1, 3), self.state.pool, self.state.counts)
        tiles = int(arrays["first_tile"][-1])
        asked = self._logprobs[batch.rows[batch.samples]]
        return CudaStep(
            ids=ids,
            positions=device["positions"],
            slots=slots,
            query_start=device["query_start"],
            context_lens=device["contexts"],
            block_tables=self.tables,
            sample_tokens=device["sample_tokens"],
            sample_rows=device["sample_rows"],
            scored_tokens=device["scored_tokens"],
            scored_targets=targets,
            table_rows=device["table_rows"],
            first_page=device["first_page"],
            first_tile=device["first_tile"],
            tiles=1 << (tiles - 1).bit_length() if tiles else 0,
            decodes=int(arrays["first_page"][-1]) > 0,
            reports=int(asked.max(initial=-1)),
            tokens=int(batch.counts.sum()),
        )

    def _host_arrays(self, batch: StepBatch) -> dict[str, Ints]:
        """Index arrays of a step, padded."""
        rows, counts = self.limits.rows, batch.counts
        total = int(counts.sum())
        size = padded(total)
        ends = np.cumsum(counts, dtype=np.int32)
        first = ends - counts
        contexts = batch.starts + counts
        decode = counts == 1
        positions, token_rows = np.zeros(size, np.int32), np.full(size, -1, np.int32)
        positions[:total] = expand(batch.starts, counts)
        token_rows[:total] = np.repeat(batch.rows, counts)
        return {
            "positions": positions,
            "token_rows": token_rows,
            "query_start": _prefix(counts, rows),
            "contexts": _filled(contexts, rows, 0),
            "table_rows": _filled(batch.rows, rows, 0),
            "first_page": _prefix(np.where(decode, -(-contexts // PAGE), 0), rows),
            "first_tile": _prefix(np.where(decode, 0, -(-counts // PREFILL_QUERIES)), rows),
            "sample_tokens": (ends - 1)[batch.samples],
            "sample_rows": batch.rows[batch.samples],
            "scored_tokens": expand(first, batch.scored),
        }

    def _take(self, name: str, size: int) -> Any:
        """The first `size` words of a step array that keeps its address."""
        return self._arena.take(f"step {name}", (size,), np.int32, reserve=RESERVED_TOKENS)

    def _send(self, runs: Sequence[Run]) -> None:
        """Enqueue the copy of all runs; they do not overlap, so their order is free."""
        runs = [run for run in runs if run.words.size]
        table = np.zeros((len(runs), RUN_WORDS), np.uint32)
        needed = table.nbytes + 4 * sum(run.words.size for run in runs)
        if self._ring.size < needed:
            cp.cuda.get_current_stream().synchronize()  # the GPU may still read the old one
            self._ring = PinnedRing(2 * needed)
        index, memory = self._ring.take()
        buffer = np.frombuffer(memory, np.uint32, needed // 4)
        end = table.size
        for entry, run in zip(table, runs, strict=True):
            address, size = run.target.data.ptr, run.words.size
            entry[:] = address & 0xFFFFFFFF, address >> 32, end - table.size, size
            buffer[end : end + size] = run.words.view(np.uint32)
            end += size
        buffer[: table.size] = table.reshape(-1)
        scatter(self._device, memory.ptr, memory.ptr + table.nbytes, len(runs))
        self._ring.used(index)


def sampling_words(sampling: RowSampling) -> Ints:
    """The row's state as sample.cu reads it: six floats, then integers."""
    floats = np.array(
        [
            sampling.temperature,
            sampling.top_p,
            sampling.min_p,
            sampling.repetition_penalty,
            sampling.presence_penalty,
            sampling.frequency_penalty,
        ],
        np.float32,
    )
    words = np.zeros(STATE_WORDS, np.uint32)
    words[:6] = floats.view(np.uint32)
    words[6:15] = (
        sampling.top_k,
        sampling.prompt_length,
        sampling.min_length,
        sampling.choice,
        sampling.seed & 0xFFFFFFFF,
        sampling.seed >> 32,
        len(sampling.bias_ids),
        len(sampling.stop_ids),
        int(penalises(sampling)),
    )
    return words.view(np.int32)


def penalises(sampling: RowSampling) -> bool:
    """Whether the row's counts matter."""
    return bool(sampling.repetition_penalty != 1.0 or sampling.presence_penalty or sampling.frequency_penalty)


def _prefix(counts: Ints, rows: int) -> Ints:
    """(rows + 1,) sums before each entry; entries that do not exist add nothing."""
    sums = np.zeros(rows + 1, np.int32)
    np.cumsum(counts, out=sums[1 : len(counts) + 1])
    sums[len(counts) + 1 :] = sums[len(counts)]
    return sums


def _filled(values: Ints, rows: int, rest: int) -> Ints:
    filled = np.full(rows, rest, np.int32)
    filled[: len(values)] = values
    return filled
