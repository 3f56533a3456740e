"""The sampler, run on the CPU from its CUDA source, against its definition: the same token, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine.arrays import Floats, RowSampling
from llmrs_cli.engine.backends.reference_sampling import draw_rows
from llmrs_cli.kernels import sample as sampler
from llmrs_cli.kernels.sample import RowState, Scratch, sample
from tests.helpers.emulate import EmulatedDevice, host
from tests.helpers.fake_cuda import cuda_backend
from tests.helpers.hard_rows import FILTERS, hard_rows
from tests.helpers.steps import greedy

CONTEXT = 64
Draw = Callable[..., tuple[list[int], list[bool]]]
Known = Sequence[Sequence[int]]


@pytest.fixture(scope="module")
def words() -> Iterator[Callable[[RowSampling], NDArray[np.int32]]]:
    with cuda_backend():
        from llmrs_cli.engine.backends.cuda_rows import sampling_words

        yield sampling_words


@pytest.fixture(scope="module")
def draw(tmp_path_factory: pytest.TempPathFactory, words: Any) -> Draw:
    """Tokens and failures of a launch with `blocks` for each row; rows of the state in reverse order."""
    gpu = EmulatedDevice(tmp_path_factory.mktemp("emulated"), arch=800, together=True)

    def run(
        logits: Floats,
        states: Sequence[RowSampling],
        known: Known,
        blocks: int,
        mask: NDArray[np.uint32] | None = None,
        told: bool = True,
    ) -> tuple[list[int], list[bool]]:
        """`told`: where results go, not where to find that."""
        count, vocab = logits.shape
        order = np.arange(count - 1, -1, -1, dtype=np.int32)
        state = row_state([states[r] for r in order], [known[r] for r in order], vocab, words)
        scratch = Scratch(
            partials=host(np.full(count * blocks * sampler.PARTIAL_WORDS, -1, np.int32)),
            meeting=host(np.zeros(count * sampler.MEETING_WORDS, np.uint32)),
            shortlists=host(np.full(count * sampler.LIST_WORDS, -1, np.int32)),
        )
        out = host(np.full((count, 2), -1, np.int32))
        ends = np.array([len(tokens) - 1 for tokens in known], np.int32)
        before = np.asarray(state.counts).copy()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sampler, "blocks_for", lambda *_: blocks)
            sample(
                gpu, 1, host(logits), host(order), host(np.arange(count, dtype=np.int32)), host(ends), state,
                scratch, None if mask is None else host(mask), out.data.ptr if told else 0,
                None if told else host(np.array([out.data.ptr], np.uint64).view(np.int32)),
            )  # fmt: skip
        assert not np.asarray(scratch.meeting).any()
        ids = np.asarray(out)[:, 0]
        failed = np.asarray(out)[:, 1].astype(bool)
        for r, row in enumerate(order):
            assert state.pool[row, len(known[r])] == ids[r]
            before[row, ids[r]] += penalised(states[r]) and not failed[r]
        assert np.array_equal(before, state.counts)
        return ids.tolist(), failed.tolist()

    return run


def penalised(state: RowSampling) -> bool:
    return bool(state.repetition_penalty != 1 or state.presence_penalty or state.frequency_penalty)


def row_state(states: Sequence[RowSampling], known: Known, vocab: int, words: Any) -> RowState:
    rows = len(states)
    bias_ids, stop_ids = np.zeros((2, rows, sampler.MAX_BIASES), np.int32)
    bias_values = np.zeros((rows, sampler.MAX_BIASES), np.float32)
    counts = np.zeros((rows, vocab + vocab % 2), np.uint16)
    for r, (state, tokens) in enumerate(zip(states, known, strict=True)):
        bias_ids[r, : len(state.bias_ids)] = state.bias_ids
        bias_values[r, : len(state.bias_ids)] = state.bias_values
        stop_ids[r, : len(state.stop_ids)] = state.stop_ids
        np.add.at(counts[r], list(tokens[state.prompt_length :]), 1)
        counts[r, list(tokens[: state.prompt_length])] |= 0x8000
    packed = np.stack([words(state) for state in states])
    pool = np.full((rows, CONTEXT), -1, np.int32)
    return RowState(*map(host, (packed, bias_ids, bias_values, stop_ids, counts, pool)))


def check(
    draw: Draw,
    logits: Floats,
    states: Sequence[RowSampling],
    blocks: int,
    known: Known = (),
    mask: NDArray[np.uint32] | None = None,
) -> list[int]:
    known = known or [[1, 2, 3]] * len(states)
    wanted = draw_rows(logits, states, [np.array(tokens, np.int32) for tokens in known], mask)
    ids, failed = draw(logits, states, known, blocks, mask)
    assert failed == wanted.failed.tolist()
    wrong = [(r, ids[r], int(wanted.ids[r]), states[r]) for r in range(len(ids)) if ids[r] != wanted.ids[r]]
    assert not wrong, f"{len(wrong)} of {len(ids)}: {wrong[:2]}"
    return ids


def random_states(rng: np.random.Generator, count: int, vocab: int) -> list[RowSampling]:
    pick = rng.choice
    plain = [
        greedy(
            prompt=3,
            temperature=float(pick([0.0, 1e-5, 0.3, 0.8, 1.0, 2.0])),
            top_k=int(pick([0, 0, 1, 3, 30, 250, 10**6])),
            top_p=float(pick([0.0, 0.3, 0.95, 1.0, 1.0])),
            min_p=float(pick([0.0, 0.0, 1e-9, 0.02, 0.6])),
            repetition_penalty=float(pick([1.0, 1.3, 0.5])),
            presence_penalty=float(pick([0.0, 0.7, -2.0])),
            frequency_penalty=float(pick([0.0, 0.31, -0.5])),
            seed=int(rng.integers(0, 2**63)) * 2 + 1,
            choice=int(rng.integers(0, 4)),
            bias_ids=np.unique(rng.integers(0, vocab, int(pick([0, 5, 900])))).astype(np.int32),
            stop_ids=np.unique(rng.integers(0, vocab, int(pick([0, 3])))).astype(np.int32),
            min_length=int(pick([0, 50])),
        )
        for _ in range(count)
    ]
    return [
        replace(state, bias_values=rng.uniform(-3, 3, len(state.bias_ids)).astype(np.float32))
        for state in plain
    ]


@pytest.mark.parametrize(("vocab", "blocks", "masked"), [(40, 1, True), (1001, 3, False), (3000, 2, True)])
def test_draws_are_those_of_the_definition(draw: Draw, vocab: int, blocks: int, masked: bool) -> None:
    rng = np.random.default_rng(vocab + blocks)
    count = 8
    logits = (rng.standard_normal((count, vocab)) * rng.choice([0.1, 3, 10], (count, 1))).astype(np.float32)
    logits[:, :7] = np.round(logits[:, :7])  # ties
    logits[1] = np.round(logits[1])  # many ties
    logits[2, ::3] = -np.inf
    known = [rng.integers(0, vocab, int(rng.integers(1, 40))).tolist() for _ in range(count)]
    mask = rng.integers(0, 2**32, (count, -(-vocab // 32)), dtype=np.uint32) if masked else None
    check(draw, logits, random_states(rng, count, vocab), blocks, known, mask)


@pytest.mark.parametrize("filters", ["none", "top-p tiny", "top-k", "large top-k", "all"])
def test_hard_rows_are_drawn_as_defined(draw: Draw, filters: str) -> None:
    rows = hard_rows(1203)
    states = [greedy(temperature=0.7, seed=11 + r, **FILTERS[filters]) for r in range(len(rows))]
    check(draw, rows, states, 1 + len(filters) % 2)


def test_results_land_where_a_recorded_launch_is_told(draw: Draw) -> None:
    logits = np.random.default_rng(0).standard_normal((3, 500)).astype(np.float32)
    states = [greedy(), greedy(temperature=1.0, seed=5), greedy(temperature=1.0, seed=6, top_p=0.5)]
    there, found = (draw(logits, states, [[1]] * 3, 2, None, told) for told in (True, False))
    assert there == found and found[0][0] == int(logits[0].argmax())


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("filters", ["none", "top-p", "top-k"])
def test_a_row_that_is_no_number_fails_alone(draw: Draw, filters: str, value: float) -> None:
    logits = np.random.default_rng(0).standard_normal((3, 500)).astype(np.float32)
    logits[1, 433] = value
    state = greedy(temperature=1.0, seed=5, **FILTERS[filters])
    _, failed = draw(logits, [state] * 3, [[1]] * 3, 2)
    assert failed == [False, True, False]
    banned = replace(state, stop_ids=np.array([433], np.int32), min_length=9)
    _, failed = draw(logits, [banned] * 3, [[1]] * 3, 2)
    assert failed == [False, True, False]


@pytest.mark.parametrize("filters", ["none", "top-p", "top-k"])
def test_a_row_that_may_draw_nothing_fails_and_counts_nothing(draw: Draw, filters: str) -> None:
    """What is counted is checked after every draw: such a row is drawn again when its mask has come."""
    logits = np.random.default_rng(0).standard_normal((3, 500)).astype(np.float32)
    state = greedy(temperature=1.0, seed=5, repetition_penalty=1.5, **FILTERS[filters])
    mask = np.full((3, 16), 0xFFFFFFFF, np.uint32)
    mask[1] = 0
    _, failed = draw(logits, [state] * 3, [[1]] * 3, 2, mask)
    assert failed == [False, True, False]


def test_a_token_depends_on_no_other_row_and_on_no_number_of_blocks(draw: Draw) -> None:
    rng = np.random.default_rng(3)
    logits = (rng.standard_normal((3, 1500)) * 2).astype(np.float32)
    states = [greedy(temperature=0.8, seed=7, **FILTERS[kind]) for kind in ("top-p", "none", "large top-k")]
    alone = [check(draw, logits[r : r + 1], [states[r]], 1)[0] for r in range(3)]
    assert check(draw, logits, states, 4) == alone
