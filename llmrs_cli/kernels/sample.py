"""Launcher of sample.cu: one token per row, in one launch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Param, Scalar, Shape, ceil_div
from llmrs_cli.kernels.loader import Unit

UNIT = Unit("sample")
THREADS = 512
MAX_SLICE = 1_000_000
"""Ids of one block at most: a warp counts what it has in 16 bits."""
MAX_BLOCKS = 32
"""Of a row: one for each lane of a warp."""
MAX_BIASES = 1024
MAX_STOPS = 1024
"""Biases and stop ids of a row; both together are what a block holds."""
PARTIAL_WORDS = 2 * 24
"""What a block leaves for the others of its row, twice."""
MEETING_WORDS = 4
LIST_WORDS = 3 * THREADS
"""A row's shortlist."""
STATE_WORDS = 16
"""Words of a row's sampling state, in the order of `Sampling` in sample.cu."""


@dataclass(frozen=True, slots=True)
class RowState:
    """Device arrays of the sampler's row state."""

    sampling: Any
    """(rows, 16) int32"""
    bias_ids: Any
    """(rows, MAX_BIASES)"""
    bias_values: Any
    """(rows, MAX_BIASES) float32"""
    stop_ids: Any
    """(rows, MAX_STOPS)"""
    counts: Any
    """(rows, W) uint16, W being V rounded up to an even number"""
    pool: Any
    """(rows, P) int32 tokens"""


@dataclass(frozen=True, slots=True)
class Scratch:
    """What the blocks of a launch leave for each other, for up to `capacity` blocks."""

    partials: Any
    """(capacity · PARTIAL_WORDS,) int32"""
    meeting: Any
    """(rows · MEETING_WORDS,) uint32, zeros between launches"""
    shortlists: Any
    """(rows · LIST_WORDS,) int32"""


def blocks_for(rows: int, vocab: int, multiprocessors: int) -> int:
    """Blocks that share a row."""
    return max(
        ceil_div(vocab, MAX_SLICE), min(MAX_BLOCKS, 2 * multiprocessors // rows, ceil_div(vocab, 4096)), 1
    )


def capacity_for(rows: int, vocab: int, multiprocessors: int) -> int:
    """Most blocks that any launch of up to `rows` rows takes."""
    return max(r * blocks_for(r, vocab, multiprocessors) for r in range(1, rows + 1))


@cache
def _kernel(mask_words: int) -> Kernel:
    params: tuple[Param, ...] = (
        Buffer("logits", "f32", ("R", "V")),
        Buffer("rows", "i32", ("R",)),
        Buffer("tokens_at", "i32", ("R",)),
        Buffer("positions", "i32", ("T",)),
        Buffer("sampling", "i32", ("rows", STATE_WORDS)),
        Buffer("bias_ids", "i32", ("rows", MAX_BIASES)),
        Buffer("bias_values", "f32", ("rows", MAX_BIASES)),
        Buffer("stop_ids", "i32", ("rows", MAX_STOPS)),
        Buffer("counts", "u16", ("rows", "W")),
        Buffer("mask", "u32", ("R", mask_words), optional=True),
        Buffer("pool", "i32", ("rows", "P")),
        Buffer("partials", "i32", ("partial words",)),
        Buffer("meeting", "u32", ("meeting words",)),
        Buffer("shortlists", "i32", ("list words",)),
        Scalar("out", "u64"),
        *(Scalar(name, "i32") for name in ("vocab", "count_width", "bias_width", "stop_width", "pool_width")),
        Buffer("out_at", "i32", (2,), optional=True),
    )
    return Kernel(UNIT, "sample", params)


def sample(
    device: Device,
    multiprocessors: int,
    logits: Any,
    rows: Any,
    tokens_at: Any,
    positions: Any,
    state: RowState,
    scratch: Scratch,
    mask: Any,
    out: int,
    out_at: Any = None,
) -> None:
    """Draw for logits (R, V) of the state's `rows` (R,); token tokens_at[r] of the step is the last known one.

    `logits` may be overwritten. mask (R, ceil(V / 32)) uint32 or None. `out` is the address of (R, 2) int32: the
    token, which is also appended to its row, and whether the row failed; `out_at` (2,) int32, if given, holds that
    address in its place.
    """
    count, vocab = logits.shape
    blocks = blocks_for(count, vocab, multiprocessors)
    assert (
        scratch.partials.size >= count * blocks * PARTIAL_WORDS
        and scratch.meeting.size >= count * MEETING_WORDS
    )
    assert scratch.shortlists.size >= count * LIST_WORDS
    _kernel(ceil_div(vocab, 32)).launch(
        device,
        Shape((blocks, count, 1), (THREADS, 1, 1)),
        logits, rows, tokens_at, positions, state.sampling, state.bias_ids, state.bias_values, state.stop_ids,
        state.counts, mask, state.pool, scratch.partials, scratch.meeting, scratch.shortlists, out,
        vocab, state.counts.shape[1], MAX_BIASES, MAX_STOPS, state.pool.shape[1],
        out_at,
    )  # fmt: skip
