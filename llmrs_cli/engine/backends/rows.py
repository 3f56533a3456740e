"""Row state on the host, for the backends that compute there: tokens, block tables, sampling state.

A row holds every token of one sequence, so the next step's inputs are a gather and a drawn token is one
store. Everything else is derived from what the step says: a row's length is the position of the token
it draws, and what penalties count are the tokens of the row before that position. So a row that starts
again after a preemption needs no state of its own. Nothing here decides anything and nothing computes logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmrs_cli.engine.arrays import Ints, RowSampling, StepArrays, StepBatch
from llmrs_cli.engine.backends.base import RowLimits, Rows

NO_BLOCK = -1


class HostRows(Rows):
    """`Rows` in NumPy arrays that the backend reads and writes in place."""

    def __init__(self, limits: RowLimits, block_size: int) -> None:
        self.limits = limits
        self.block_size = block_size
        self.tokens: Ints = np.zeros((limits.rows, limits.context + 1), np.int32)
        """(rows, context + 1): one column more, for the token drawn after a full context"""
        width = -(-limits.context // block_size)
        self.tables: Ints = np.full((limits.rows, width), NO_BLOCK, np.int32)
        """(rows, blocks of the longest row)"""
        self.sampling: dict[int, RowSampling] = {}
        """By row; a row that never started has none."""

    def start(self, row: int, tokens: Sequence[int], sampling: RowSampling) -> None:
        self.tokens[row, : len(tokens)] = tokens
        self.tables[row] = NO_BLOCK
        self.sampling[row] = sampling

    def grant(self, row: int, first: int, blocks: Sequence[int]) -> None:
        self.tables[row, first : first + len(blocks)] = blocks

    def begin(self, batch: StepBatch) -> StepArrays:
        """Edits are applied as they come, so all that is left is to expand the chunks."""
        starts = np.zeros(len(batch.counts) + 1, np.int32)
        np.cumsum(batch.counts, out=starts[1:])
        context = batch.starts + batch.counts
        rows = np.repeat(batch.rows, batch.counts)
        first = starts[:-1]
        positions = np.arange(starts[-1], dtype=np.int32) + np.repeat(batch.starts - first, batch.counts)
        blocks = self.tables[rows, positions // self.block_size]
        scored = expand(first, batch.scored)
        return StepArrays(
            ids=self.tokens[rows, positions],
            positions=positions,
            slots=blocks * self.block_size + positions % self.block_size,
            query_start=starts,
            context_lens=context,
            block_tables=self.tables[batch.rows, : -(-int(context.max(initial=0)) // self.block_size)],
            sample_tokens=starts[1:][batch.samples] - 1,
            sample_rows=batch.rows[batch.samples],
            scored_tokens=scored,
            scored_targets=self.tokens[rows[scored], positions[scored] + 1],
        )

    def append(self, rows: Ints, positions: Ints, ids: Ints) -> None:
        """Store the tokens drawn: (R,) each, `ids[r]` at `positions[r]` of `rows[r]`."""
        self.tokens[rows, positions] = ids


def expand(starts: Ints, counts: Ints) -> Ints:
    """starts[i], starts[i] + 1, … (counts[i] of them) for each i, one after the other."""
    ends = sums(counts)
    total = int(ends[-1]) if len(ends) else 0
    expanded: Ints = np.arange(total, dtype=np.int32) + (starts - (ends - counts)).repeat(counts)
    return expanded


def sums(values: Ints) -> Ints:
    """The sum of all values up to each, and with it: `np.cumsum` at a third of its price for short arrays."""
    found: Ints = np.add.accumulate(values, dtype=np.int32)
    return found
