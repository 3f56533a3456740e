"""Row state → the tables that the sampling loop reads; logits → tokens and log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.arrays import Draws, Floats, Ints, RowSampling
from llmrs_cli.kernels.simd.program import Program

NO_MASK = np.empty((0, 0), np.uint32)
WORD = 0xFFFFFFFF


def draw_rows(
    logits: Floats,
    states: Sequence[RowSampling],
    rows: Ints,
    lengths: Ints,
    tokens: Ints,
    mask: NDArray[np.uint32] | None,
    loops: Program,
    board: NDArray[np.int64],
) -> Draws:
    """One token per row of (R, V) logits; row r is row rows[r] of `tokens` and holds lengths[r] of them."""
    bans = [
        state.stop_ids if length < state.min_length else state.stop_ids[:0]
        for state, length in zip(states, lengths, strict=True)
    ]
    ids, failed = np.empty(len(states), np.int32), np.empty(len(states), np.bool_)
    loops.draw(
        board,
        logits,
        tokens,
        np.array([_shares(state) for state in states], np.float32).reshape(-1, 6),
        np.array([_counts(*triple) for triple in zip(states, rows, lengths, strict=True)], np.int64).reshape(
            -1, 7
        ),
        np.stack([_starts([state.bias_ids for state in states]), _starts(bans)]),
        _joined([state.bias_ids for state in states], np.int32),
        _joined([state.bias_values for state in states], np.float32),
        _joined(bans, np.int32),
        NO_MASK if mask is None else np.ascontiguousarray(mask, np.uint32),
        ids,
        failed,
    )
    asked = max((state.logprobs for state in states), default=-1)
    return _unscored(ids, failed) if asked < 0 else _scored(logits, ids, failed, asked, loops, board)


def score_rows(
    logits: Floats, targets: Ints, alternatives: int, loops: Program, board: NDArray[np.int64]
) -> Draws:
    """Log-softmax of (P, V) logits at `targets` (P,), with the best `alternatives` (at most V)."""
    count = len(targets)
    shape = count, min(alternatives, logits.shape[1])
    logprobs, failed = np.empty(count, np.float32), np.empty(count, np.bool_)
    top_ids, top_logprobs = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    targets = np.ascontiguousarray(targets, np.int32)
    loops.score(board, logits, targets, logprobs, failed, top_ids, top_logprobs)
    return Draws(targets, failed, logprobs, top_ids, top_logprobs)


def _unscored(ids: Ints, failed: NDArray[np.bool_]) -> Draws:
    nothing = np.zeros((len(ids), 0), np.float32)
    return Draws(ids, failed, np.zeros(len(ids), np.float32), nothing.astype(np.int32), nothing)


def _scored(
    logits: Floats, ids: Ints, failed: NDArray[np.bool_], asked: int, loops: Program, board: NDArray[np.int64]
) -> Draws:
    """With log-probabilities; a failed row's are those of equal logits, and its own is 0."""
    sound = np.where(failed[:, None], np.float32(0), logits) if failed.any() else logits
    scored = score_rows(sound, ids, asked, loops, board)
    return Draws(
        ids, failed, np.where(failed, np.float32(0), scored.logprobs), scored.top_ids, scored.top_logprobs
    )


def _shares(state: RowSampling) -> tuple[float, ...]:
    """In the order of `sample.TEMPERATURE` and what follows it."""
    return (
        state.temperature,
        state.top_p,
        state.min_p,
        state.repetition_penalty,
        state.presence_penalty,
        state.frequency_penalty,
    )


def _counts(state: RowSampling, row: int, length: int) -> tuple[int, ...]:
    """In the order of `sample.TOP_K` and what follows it."""
    seed_low, seed_high = state.seed & WORD, state.seed >> 32
    return state.top_k, state.prompt_length, length, state.choice, seed_low, seed_high, row


def _starts(parts: Sequence[NDArray[np.generic]]) -> NDArray[np.int64]:
    """Where each part begins once they are joined, and where the last one ends."""
    return np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)


def _joined(parts: Sequence[NDArray[np.generic]], dtype: type[np.generic]) -> NDArray[np.generic]:
    return np.concatenate([np.empty(0, dtype), *parts]).astype(dtype)
