"""Host row state: what `begin` expands, checked by eye on small tables and against a slow walk."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine.arrays import StepArrays
from llmrs_cli.engine.backends.base import RowLimits
from llmrs_cli.engine.backends.rows import HostRows, expand
from tests.helpers.steps import batch, greedy

BLOCK = 3


def rows(count: int = 4, context: int = 20) -> HostRows:
    return HostRows(RowLimits(rows=count, context=context, vocab=100), BLOCK)


def test_a_decode_step_reads_one_token_a_row() -> None:
    state = rows()
    state.start(2, [10, 11, 12, 13], greedy(prompt=4))
    state.grant(2, 0, [7, 5])
    step = state.begin(batch((2, 3, 1, True)))
    assert step.ids.tolist() == [13]
    assert step.positions.tolist() == [3]
    assert step.slots.tolist() == [5 * BLOCK]
    assert step.query_start.tolist() == [0, 1]
    assert step.context_lens.tolist() == [4]
    assert step.block_tables.tolist() == [[7, 5]]
    assert step.sample_tokens.tolist() == [0]
    assert step.sample_rows.tolist() == [2]
    assert step.scored_tokens.tolist() == []


def test_chunks_of_several_rows_lie_one_after_the_other() -> None:
    state = rows()
    state.start(0, [1, 2, 3, 4, 5], greedy(prompt=5))
    state.grant(0, 0, [9])
    state.grant(0, 1, [4])
    state.start(3, [6, 7], greedy(prompt=2))
    state.grant(3, 0, [2])
    step = state.begin(batch((0, 1, 4, True), (3, 0, 1, False)))
    assert step.ids.tolist() == [2, 3, 4, 5, 6]
    assert step.positions.tolist() == [1, 2, 3, 4, 0]
    assert step.slots.tolist() == [28, 29, 12, 13, 6]
    assert step.query_start.tolist() == [0, 4, 5]
    assert step.block_tables.tolist() == [[9, 4], [2, -1]]
    assert step.sample_tokens.tolist() == [3]
    assert step.sample_rows.tolist() == [0]


def test_scored_tokens_are_compared_with_their_successors() -> None:
    state = rows()
    state.start(1, [5, 6, 7, 8], greedy(prompt=4))
    state.grant(1, 0, [0, 1])
    step = state.begin(batch((1, 0, 4, True, 3)))
    assert step.scored_tokens.tolist() == [0, 1, 2]
    assert step.scored_targets.tolist() == [6, 7, 8]


def test_an_appended_token_is_the_next_step_s_input() -> None:
    state = rows()
    state.start(0, [1, 2], greedy(prompt=2))
    state.grant(0, 0, [0])
    state.append(np.array([0], np.int32), np.array([2], np.int32), np.array([42], np.int32))
    assert state.begin(batch((0, 2, 1, True))).ids.tolist() == [42]


def test_a_token_drawn_at_the_end_of_the_context_has_its_place() -> None:
    state = rows(context=6)
    state.start(0, [1] * 6, greedy(prompt=6))
    state.append(np.array([0], np.int32), np.array([6], np.int32), np.array([42], np.int32))
    assert state.tokens[0, 6] == 42


def test_a_row_that_starts_again_has_an_empty_block_table() -> None:
    state = rows()
    state.start(0, [1], greedy(prompt=1))
    state.grant(0, 0, [3, 4, 5])
    state.start(0, [9, 9, 9, 9], greedy(prompt=4))
    state.grant(0, 0, [8])
    assert state.begin(batch((0, 0, 3, False), (1, 0, 4, False))).block_tables[0].tolist() == [8, -1]


def test_an_empty_step_stages_empty_arrays() -> None:
    step = rows().begin(batch())
    assert step.ids.size == step.sample_tokens.size == step.scored_targets.size == 0
    assert step.query_start.tolist() == [0]


def test_every_array_is_int32() -> None:
    state = rows()
    state.start(0, [1, 2, 3], greedy(prompt=3))
    state.grant(0, 0, [0])
    step = state.begin(batch((0, 0, 3, True, 2)))
    assert {getattr(step, name).dtype for name in StepArrays.__slots__} == {np.dtype(np.int32)}


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 4))))
def test_expand_equals_its_ranges_joined(pairs: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in pairs], np.int32)
    counts = np.array([count for _, count in pairs], np.int32)
    assert expand(starts, counts).tolist() == [s + i for s, c in pairs for i in range(c)]


@st.composite
def chunked_rows(draw: st.DrawFn) -> list[tuple[int, int, int, bool, int]]:
    """(row, start, count, samples, scored) for some rows in any order."""
    order = draw(st.permutations(range(4)))
    chunks = []
    for row in order[: draw(st.integers(1, 4))]:
        count = draw(st.integers(1, 9))
        start = draw(st.integers(0, 19 - count))
        chunks.append((row, start, count, draw(st.booleans()), draw(st.integers(0, count))))
    return chunks


@given(chunked_rows())
def test_begin_equals_a_walk_over_the_tokens(chunks: list[tuple[int, int, int, bool, int]]) -> None:
    state = rows()
    tables = {row: [row * 10 + b for b in range(7)] for row in range(4)}
    for row in range(4):
        state.start(row, [row * 20 + i for i in range(20)], greedy(prompt=20))
        state.grant(row, 0, tables[row])
    step = state.begin(batch(*chunks))
    walk = [(row, p) for row, start, count, _, _ in chunks for p in range(start, start + count)]
    assert step.ids.tolist() == [row * 20 + p for row, p in walk]
    assert step.slots.tolist() == [tables[row][p // BLOCK] * BLOCK + p % BLOCK for row, p in walk]
    assert step.context_lens.tolist() == [start + count for _, start, count, _, _ in chunks]
    ends = np.cumsum([count for _, _, count, _, _ in chunks])
    assert step.sample_tokens.tolist() == [e - 1 for e, c in zip(ends, chunks, strict=True) if c[3]]
    assert step.scored_targets.tolist() == [
        row * 20 + start + i + 1 for row, start, _, _, scored in chunks for i in range(scored)
    ]


def test_sampling_state_stays_with_its_row() -> None:
    state = rows()
    first, second = greedy(prompt=1, seed=1), greedy(prompt=1, seed=2)
    state.start(0, [1], first)
    state.start(1, [1], second)
    assert [state.sampling[0], state.sampling[1]] == [first, second]
