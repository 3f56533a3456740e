"""Row state over any order of starts, grants, steps and draws, beside lists and dictionaries that cannot be wrong."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llmrs_cli.engine.backends.base import RowLimits
from llmrs_cli.engine.backends.rows import NO_BLOCK, HostRows
from tests.helpers.steps import batch, greedy, tokens

ROWS, CONTEXT = 3, 25
TOKEN = st.integers(0, 99)


class RowsBesideLists(RuleBasedStateMachine):
    """What a row must hold is what was put there since it started."""

    @initialize(block=st.integers(1, 9))
    def open(self, block: int) -> None:
        self.block = block
        self.width = -(-CONTEXT // block)
        self.rows = HostRows(RowLimits(ROWS, CONTEXT, vocab=100), block)
        self.tokens: dict[int, list[int]] = {}
        self.tables: dict[int, list[int]] = {}
        self.seeds: dict[int, int] = {}

    @rule(row=st.integers(0, ROWS - 1), known=st.lists(TOKEN, min_size=1, max_size=CONTEXT), seed=TOKEN)
    def start(self, row: int, known: list[int], seed: int) -> None:
        self.rows.start(row, known, greedy(prompt=len(known), seed=seed))
        self.tokens[row], self.tables[row], self.seeds[row] = list(known), [], seed

    def _choose(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.tokens)), label="row")

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def grant(self, data: st.DataObject) -> None:
        row = self._choose(data)
        table = self.tables[row]
        blocks = data.draw(st.lists(TOKEN, max_size=self.width - len(table)), label="blocks")
        self.rows.grant(row, len(table), blocks)
        table += blocks

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), token=TOKEN)
    def append(self, data: st.DataObject, token: int) -> None:
        row = self._choose(data)
        if len(self.tokens[row]) > CONTEXT:
            return
        self.rows.append(tokens(row), tokens(len(self.tokens[row])), tokens(token))
        self.tokens[row].append(token)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), scored=st.booleans())
    def step(self, data: st.DataObject, scored: bool) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.tokens)), unique=True, min_size=1))
        chunks = []
        for row in chosen:
            known = min(len(self.tokens[row]), CONTEXT)
            start = data.draw(st.integers(0, known - 1))
            count = data.draw(st.integers(1, known - start))
            after = len(self.tokens[row]) - start - 1
            chunks.append((row, start, count, data.draw(st.booleans()), min(count, after) if scored else 0))
        self._check(chunks)

    def _check(self, chunks: list[tuple[int, int, int, bool, int]]) -> None:
        step = self.rows.begin(batch(*chunks))
        walk = [(row, at) for row, first, count, _, _ in chunks for at in range(first, first + count)]
        assert step.ids.tolist() == [self.tokens[row][at] for row, at in walk]
        assert step.positions.tolist() == [at for _, at in walk]
        for (row, at), slot in zip(walk, step.slots.tolist(), strict=True):
            table = self.tables[row]
            block = table[at // self.block] if at // self.block < len(table) else NO_BLOCK
            assert slot == block * self.block + at % self.block
        longest = max(first + count for _, first, count, _, _ in chunks)
        assert step.block_tables.shape == (len(chunks), -(-longest // self.block))
        scored = [(row, first + i) for row, first, _, _, number in chunks for i in range(number)]
        assert step.scored_targets.tolist() == [self.tokens[row][at + 1] for row, at in scored]
        assert [walk[i] for i in step.scored_tokens.tolist()] == scored
        ends = [(row, first + count - 1) for row, first, count, draws, _ in chunks if draws]
        assert [walk[i] for i in step.sample_tokens.tolist()] == ends
        assert step.sample_rows.tolist() == [row for row, _ in ends]

    @invariant()
    def tables_hold_what_was_granted_and_nothing_else(self) -> None:
        for row, table in getattr(self, "tables", {}).items():
            assert self.rows.tables[row].tolist() == table + [NO_BLOCK] * (self.width - len(table))

    @invariant()
    def rows_keep_their_sampling_state(self) -> None:
        seeds = getattr(self, "seeds", {})
        assert {row: self.rows.sampling[row].seed for row in seeds} == seeds


TestRowsBesideLists = RowsBesideLists.TestCase
TestRowsBesideLists.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_rows_are_independent() -> None:
    """The same edits to other rows, before or after, leave a row's step as it is."""
    alone, among = (HostRows(RowLimits(4, 12, vocab=50), 4) for _ in range(2))
    for rows in (alone, among):
        if rows is among:
            rows.start(0, [7] * 12, greedy())
            rows.grant(0, 0, [9, 9, 9])
        rows.start(2, [1, 2, 3, 4, 5], greedy())
        rows.grant(2, 0, [3, 1])
        if rows is among:
            rows.start(3, [8], greedy())
            rows.append(tokens(0, 3), tokens(12, 1), tokens(6, 6))
    one, two = (rows.begin(batch((2, 1, 4, True))) for rows in (alone, among))
    for name in ("ids", "positions", "slots", "context_lens", "block_tables", "sample_tokens"):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name
