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
from llmrs_cli.kernels.attend_decode import chunk_pages
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
RESERVED_WORDS = 1 << 16
"""Room for the arrays of a step, so that they rarely move."""
NO_ROW = -1
SECTIONS = (
    "contexts", "table_rows", "query_start", "first_page", "first_tile", "positions", "token_rows",
    "sample_tokens", "sample_rows", "scored_tokens",
)  # fmt: skip
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
    """(rows + 2,) i32 pages of the sequences with one query before each; then pages of a chunk"""
    first_tile: Any
    """(rows + 1,) i32 tiles of the sequences with more queries before each"""
    tiles: int
    """Tiles to launch, a power of two, or 0"""
    decodes: bool
    """Some sequence has one query"""
    reports: int
    """Alternatives to report beside drawn tokens; -1: no log-probabilities"""

    @property
    def key(self) -> tuple[int, int, bool]:
        return self.ids.size, self.tiles, self.decodes


class CudaRows(Rows):
    """`Rows` on the GPU."""

    def __init__(self, limits: RowLimits, device: Device, arena: Arena, stream: Any, shares: int) -> None:
        """`shares`: blocks of decode attention for each key head."""
        self.limits = limits
        self._arena = arena
        self._stream = stream
        self._shares = shares
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
        self._cuts: dict[tuple[tuple[int, ...], int], dict[str, Any]] = {}

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
        words = self._host_words(batch)
        sections = self._sections(tuple(part.size for part in words))
        runs = list(self._edits())
        starts = self._counted()
        if starts.size:
            device_starts = self._arena.take("starts", starts.shape, np.int32)
            runs.append(Run(device_starts, starts.reshape(-1)))
        runs.append(Run(sections["all"], np.concatenate(words)))
        self._send(runs)
        self._starts, self._granted = {}, {}
        gather(
            self._device, self.state.pool, self.tables, sections["token_rows"], sections["positions"],
            sections["ids"], sections["slots"], sections["scored_tokens"], sections["targets"],
        )  # fmt: skip
        if starts.size:
            count_tokens(self._device, device_starts, self.state.pool, self.state.counts)
        first_page, first_tile = words[3], words[4]
        tiles = int(first_tile[-1])
        return CudaStep(
            ids=sections["ids"],
            positions=sections["positions"],
            slots=sections["slots"],
            query_start=sections["query_start"],
            context_lens=sections["contexts"],
            block_tables=self.tables,
            sample_tokens=sections["sample_tokens"],
            sample_rows=sections["sample_rows"],
            scored_tokens=sections["scored_tokens"],
            scored_targets=sections["targets"],
            table_rows=sections["table_rows"],
            first_page=sections["first_page"],
            first_tile=sections["first_tile"],
            tiles=1 << (tiles - 1).bit_length() if tiles else 0,
            decodes=int(first_page[-2]) > 0,
            reports=int(self._logprobs[batch.rows[batch.samples]].max(initial=-1)),
        )

    def _host_words(self, batch: StepBatch) -> tuple[Ints, ...]:
        """Index arrays of a step in the order of SECTIONS, padded."""
        rows, counts = self.limits.rows, batch.counts
        ends = np.cumsum(counts, dtype=np.int32)
        first, total = ends - counts, int(ends[-1])
        contexts = batch.starts + counts
        decode = counts == 1
        pages = np.where(decode, -(-contexts // PAGE), 0)
        tiles = np.where(decode, 0, -(-counts // PREFILL_QUERIES))
        positions, token_rows = np.zeros((2, padded(total)), np.int32)
        positions[:total] = expand(batch.starts, counts)
        token_rows[:total] = np.repeat(batch.rows, counts)
        token_rows[total:] = NO_ROW
        return (
            _filled(contexts, rows),
            _filled(batch.rows, rows),
            _prefix(counts, rows),
            np.append(_prefix(pages, rows), self._chunk(pages)),
            _prefix(tiles, rows),
            positions,
            token_rows,
            (ends - 1)[batch.samples],
            batch.rows[batch.samples],
            expand(first, batch.scored),
        )

    def _sections(self, sizes: tuple[int, ...]) -> dict[str, Any]:
        """Step arrays by name: one stretch of device memory, cut as `sizes` say, and what is derived on it.

        Equal sizes give equal addresses. Only the last three sizes vary at a given padded token count, and
        no recorded launch reads what comes after the first of them.
        """
        known = self._cuts.get((sizes, self._arena.generation))
        if known is None:
            whole = self._arena.take("step", (sum(sizes),), np.int32, reserve=RESERVED_WORDS)
            ends = np.cumsum(sizes).tolist()
            known = {
                name: whole[end - size : end] for name, end, size in zip(SECTIONS, ends, sizes, strict=True)
            }
            known["all"] = whole
            for name, size in (("ids", sizes[5]), ("slots", sizes[5]), ("targets", sizes[9])):
                known[name] = self._arena.take(name, (size,), np.int32, reserve=RESERVED_WORDS)
            self._cuts[sizes, self._arena.generation] = known
        return known

    def _chunk(self, pages: Ints) -> Ints:
        return np.array([chunk_pages(int(pages.sum()), int(pages.max()), self._shares)], np.int32)

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


def _filled(values: Ints, rows: int) -> Ints:
    """(rows,) the values, then zeros."""
    filled = np.zeros(rows, np.int32)
    filled[: len(values)] = values
    return filled
