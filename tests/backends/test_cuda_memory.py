"""Buffers of the CUDA backend, on a GPU that only pretends: who has which memory, and when it is free again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmrs_cli.engine.arrays import Draws
from llmrs_cli.kernels.sample import STATE_WORDS
from tests.helpers.fake_cuda import Event, cuda_backend


@pytest.fixture
def backend() -> Iterator[Any]:
    with cuda_backend() as opened:
        yield opened


@pytest.fixture
def memory(backend: Any) -> Any:
    import llmrs_cli.engine.backends.cuda_memory as module

    return module


# -- arena --------------------------------------------------------------------------------------------


def test_a_buffer_serves_every_size_up_to_its_largest(memory: Any) -> None:
    arena = memory.Arena()
    large = arena.take("x", (4, 6), np.float32)
    small = arena.take("x", (2, 6), np.float32)
    assert small.data.ptr == large.data.ptr
    assert arena.generation == 0
    assert arena.take("x", (2, 6), np.float32) is small


def test_a_larger_size_moves_the_buffer_and_says_so(memory: Any) -> None:
    arena = memory.Arena()
    small = arena.take("x", (2, 6), np.float32)
    other = arena.take("y", (3,), np.int32)
    larger = arena.take("x", (4, 6), np.float32)
    assert arena.generation == 1
    assert arena.take("x", (2, 6), np.float32) is not small
    assert arena.take("x", (2, 6), np.float32).data.ptr == larger.data.ptr
    assert arena.take("y", (3,), np.int32) is other


def test_kinds_of_one_name_are_apart(memory: Any) -> None:
    arena = memory.Arena()
    assert arena.take("x", (4,), np.float32).data.ptr != arena.take("x", (4,), np.int32).data.ptr
    assert arena.nbytes == 32


def test_rows_are_reserved_for_the_largest_step_and_vectors_as_asked(memory: Any) -> None:
    arena = memory.Arena(tokens=100)
    first = arena.take("x", (1, 6), np.uint16)
    assert arena.take("x", (100, 6), np.uint16).data.ptr == first.data.ptr
    assert arena.generation == 0
    arena.take("v", (3,), np.int32, reserve=50)
    arena.take("v", (50,), np.int32)
    assert (arena.generation, arena.nbytes) == (0, 1200 + 200)


# -- pinned buffers -----------------------------------------------------------------------------------


def test_buffers_take_turns_and_are_waited_for_once_used(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[Event] = []
    monkeypatch.setattr(Event, "synchronize", lambda self: waited.append(self))
    ring = memory.PinnedRing(64, depth=3)
    events = []
    for turn in range(7):
        index, buffer = ring.take()
        assert index == turn % 3 and len(buffer) == 64
        events.append(ring.used(index))
    assert waited == events[:4]
    assert len(set(map(id, events))) == 3  # an event is recorded anew, not made anew


def test_a_buffer_that_was_never_used_is_not_waited_for(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Event, "synchronize", lambda self: pytest.fail("waited"))
    ring = memory.PinnedRing(8)
    for _ in range(6):
        ring.take()


# -- results ------------------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.integers(1, 5), top=st.integers(-1, 3), seed=st.integers(0, 99))
def test_a_result_comes_back_as_it_was_written(backend: Any, rows: int, top: int, seed: int) -> None:
    import llmrs_cli.engine.backends.cuda_draws as draws

    rng = np.random.default_rng(seed)
    pool = draws.DrawPool(backend.device, backend._head_arena)
    ids, failed = rng.integers(0, 1000, rows), rng.integers(0, 2, rows).astype(bool)
    at, tops = (
        rng.normal(size=rows).astype(np.float32),
        rng.normal(size=(rows, max(top, 0))).astype(np.float32),
    )
    top_ids = rng.integers(0, 1000, tops.shape)
    words = [np.stack([ids, failed], 1).astype(np.int32).ravel()]
    if top >= 0:
        words += [
            at.view(np.int32),
            top_ids.astype(np.int32).ravel(),
            tops.view(np.int32).ravel(),
            failed.astype(np.int32),
        ]
    memory = pool._take(draws.words(rows, top))
    flat = np.concatenate(words)
    np.frombuffer(memory, np.int32)[: flat.size] = flat
    found: Draws = pool.fetch(draws.Drawn(memory, Event(), rows, top))
    assert found.ids.tolist() == ids.tolist()
    assert found.failed.tolist() == failed.tolist()
    if top < 0:
        assert found.top_ids.shape == (rows, 0)
        return
    assert found.logprobs.tolist() == np.where(failed, 0, at).tolist()
    assert found.top_ids.tolist() == top_ids.tolist()
    assert found.top_logprobs.tolist() == np.where(failed[:, None], 0, tops).tolist()


def test_results_of_steps_under_way_lie_apart(backend: Any) -> None:
    import llmrs_cli.engine.backends.cuda_memory as memory

    turns = memory.Turns(64)
    taken = [turns.next() for _ in range(turns.depth)]
    assert len({held.ptr for held in taken}) == turns.depth >= 3
    assert turns.current is taken[-1] and turns.next() is taken[0]


def test_what_was_lent_is_not_kept(backend: Any) -> None:
    import llmrs_cli.engine.backends.cuda_draws as draws

    pool = draws.DrawPool(backend.device, backend._head_arena)
    lent = pool._take(4)
    found = pool.fetch(pool.launched(lent, 2))
    assert len(found.ids) == 2 and not pool._free


def test_a_larger_result_gets_a_buffer_of_its_own(backend: Any) -> None:
    import llmrs_cli.engine.backends.cuda_draws as draws

    pool = draws.DrawPool(backend.device, backend._head_arena)
    small = pool._take(4)
    pool._free.append(small)
    assert pool._take(2 * draws.LEAST_WORDS) is not small
    assert pool._take(draws.LEAST_WORDS) is small


# -- row state ----------------------------------------------------------------------------------------


def test_sampling_state_is_packed_as_the_kernel_reads_it(backend: Any) -> None:
    import llmrs_cli.engine.backends.cuda_rows as rows
    from tests.helpers.steps import greedy

    state = greedy(
        prompt=7, temperature=0.5, top_p=0.25, min_p=0.125, repetition_penalty=2.0, presence_penalty=-1.0,
        frequency_penalty=1.5, top_k=3, min_length=9, choice=2, seed=(5 << 32) | 6,
    )  # fmt: skip
    words = rows.sampling_words(state)
    assert words[:6].view(np.float32).tolist() == [0.5, 0.25, 0.125, 2.0, -1.0, 1.5]
    assert words[6:15].tolist() == [3, 7, 9, 2, 6, 5, 0, 0, 1]
    assert rows.sampling_words(greedy())[14] == 0
    assert words.dtype == np.int32 and words.size == STATE_WORDS


def test_a_row_that_starts_brings_its_tokens_its_state_and_its_blocks(backend: Any) -> None:
    from llmrs_cli.engine.backends.base import RowLimits
    from tests.helpers.steps import batch, greedy

    rows = backend.open_rows(RowLimits(4, 200, 50))
    rows.start(2, [5, 6, 7], greedy(prompt=3, frequency_penalty=1.0))
    rows.grant(2, 0, [9])
    rows.grant(2, 1, [4])
    rows.begin(batch((2, 0, 3, True)))
    assert rows.state.pool[2, :3].tolist() == [5, 6, 7]
    assert rows.tables[2, :2].tolist() == [9, 4]
    assert backend.device.launched["count_tokens"] == 1
    rows.begin(batch((2, 3, 1, True)))
    assert backend.device.launched["count_tokens"] == 1
    assert backend.device.launched["scatter"] == 2


def test_a_step_reports_as_much_as_the_rows_that_draw_in_it_want(backend: Any) -> None:
    from llmrs_cli.engine.backends.base import RowLimits
    from tests.helpers.steps import batch, greedy

    rows = backend.open_rows(RowLimits(4, 200, 50))
    for row, logprobs in enumerate((-1, 0, 3)):
        rows.start(row, [5, 6], greedy(prompt=2, logprobs=logprobs))
    first, second, third = ((row, 0, 2, True) for row in range(3))
    drawing = [[first], [first, second], [second, third], [first, (2, 0, 2, False)]]
    assert [rows.begin(batch(*chunks)).reports for chunks in drawing] == [-1, 0, 3, -1]
    rows.start(2, [7, 8], greedy(prompt=2))
    assert rows.begin(batch(third)).reports == -1, "another sequence has the row"


def test_edits_that_outgrow_the_ring_get_a_larger_one(backend: Any) -> None:
    import llmrs_cli.engine.backends.cuda_rows as module
    from llmrs_cli.engine.backends.base import RowLimits
    from tests.helpers.steps import batch, greedy

    rows = backend.open_rows(RowLimits(2, 400_000, 50))
    known = list(range(300_000))
    rows.start(0, known, greedy(prompt=300_000))
    rows.grant(0, 0, range(5000))
    rows.begin(batch((0, 0, 4, False)))
    assert rows._ring.size > module.RING_BYTES
    assert rows.state.pool[0, 299_990:300_000].tolist() == known[299_990:]
