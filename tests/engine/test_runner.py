"""The runner on the reference backend: chunks, batches, restarts and lookahead change no token.

The oracle recomputes the whole sequence for every token in another implementation (`helpers.naive`).
Margins of these models are far above float32 rounding; a test that needs one says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrs_cli.engine.backends.base import HEAD_ROWS, RowLimits
from llmrs_cli.engine.backends.handles import ModelWeights
from llmrs_cli.engine.backends.reference import CanonicalLinear, ReferenceBackend
from llmrs_cli.engine.plan import BlockGrant, Chunk, RowStart, Sampled, StepPlan
from llmrs_cli.engine.runner import Runner
from llmrs_cli.engine.types import SamplingParams
from llmrs_cli.engine.weights.packed import Dense
from tests.helpers.naive import greedy_answer, naive_logits
from tests.helpers.tiny_weights import TinyShape, tiny_weights

SHAPE = TinyShape()
GREEDY = SamplingParams(max_tokens=50)
PROMPT = (5, 17, 3, 60, 42, 8, 8, 21, 33, 1, 0, 63, 12, 30, 7, 19, 25, 50)
"""Longer than a block of 16."""
COUNT = 12


@cache
def model() -> ModelWeights:
    return tiny_weights(ReferenceBackend(), SHAPE)


@cache
def answer(prompt: tuple[int, ...] = PROMPT) -> list[int]:
    ids, margins = greedy_answer(lambda known: naive_logits(model(), known)[-1], prompt, COUNT)
    assert min(margins) > 1e-4
    return ids


class Driver:
    """Writes plans by hand: every row has its own run of blocks."""

    def __init__(self, rows: int = 4, context: int = 64, weights: ModelWeights | None = None) -> None:
        backend = ReferenceBackend()
        weights = model() if weights is None else weights
        self.blocks = context // backend.block_size
        kv = backend.alloc_kv(SHAPE.layers, rows * self.blocks, SHAPE.kv_heads, SHAPE.head_dim)
        self.runner = Runner(backend, weights, kv, backend.open_rows(RowLimits(rows, context, SHAPE.vocab)))
        self.starts: list[RowStart] = []
        self.grants: list[BlockGrant] = []
        self.number = 0

    def start(
        self, row: int, tokens: Sequence[int], params: SamplingParams = GREEDY, prompt: int | None = None
    ) -> None:
        length = len(tokens) if prompt is None else prompt
        self.starts.append(RowStart(row, tuple(tokens), length, params, 0))
        # Blocks in descending order, so that a table read the wrong way round shows.
        first = (row + 1) * self.blocks - 1
        self.grants.append(BlockGrant(row, 0, tuple(range(first, first - self.blocks, -1))))

    def plan(self, *chunks: Chunk) -> StepPlan:
        self.number += 1
        plan = StepPlan(self.number, tuple(self.starts), tuple(self.grants), chunks)
        self.starts, self.grants = [], []
        return plan

    def step(self, *chunks: Chunk) -> list[Sampled | None]:
        self.runner.launch(self.plan(*chunks))
        return list(self.runner.collect().sampled)


def chunk(row: int, start: int, count: int = 1, samples: bool = True, scored: int = 0) -> Chunk:
    return Chunk(f"r{row}", row, start, count, samples, scored)


def token(sampled: Sampled | None) -> int:
    assert sampled is not None
    return sampled.token


def generate(driver: Driver, row: int, first: int, count: int) -> list[int]:
    """Decode `count` tokens of a row whose first uncomputed token stands at `first`."""
    return [token(driver.step(chunk(row, first + i))[0]) for i in range(count)]


@pytest.mark.parametrize("cuts", [(18,), (1, 17), (16, 2), (15, 2, 1), (5, 5, 5, 3), (1,) * 18])
def test_a_prompt_may_be_cut_anywhere(cuts: tuple[int, ...]) -> None:
    driver = Driver()
    driver.start(1, PROMPT)
    start = 0
    for count in cuts:
        last = start + count == len(PROMPT)
        sampled = driver.step(chunk(1, start, count, samples=last))[0]
        assert (sampled is not None) == last
        start += count
    assert [token(sampled), *generate(driver, 1, start, COUNT - 1)] == answer()


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_rows_computed_in_any_interleaving_of_chunks_answer_alike(seed: int) -> None:
    random = Random(seed)
    driver = Driver()
    lengths = {row: random.randint(1, len(PROMPT)) for row in range(3)}
    computed = dict.fromkeys(lengths, 0)
    drawn: dict[int, list[int]] = {row: [] for row in lengths}
    for row, length in lengths.items():
        driver.start(row, PROMPT[:length])
    while any(len(ids) < 3 for ids in drawn.values()):
        chunks = []
        for row in random.sample(range(3), 3):
            left = lengths[row] + len(drawn[row]) - computed[row]
            count = random.randint(0, left)
            if count and len(drawn[row]) < 3:
                chunks.append(chunk(row, computed[row], count, samples=count == left))
                computed[row] += count
        for done, sampled in zip(chunks, driver.step(*chunks) if chunks else (), strict=True):
            if sampled is not None:
                drawn[done.row].append(sampled.token)
    for row, length in lengths.items():
        assert drawn[row] == answer(PROMPT[:length])[:3]


def test_a_row_in_a_mixed_batch_gets_its_own_answer() -> None:
    driver = Driver()
    others = PROMPT[3:], PROMPT[::-1]
    driver.start(0, others[0])
    first = driver.step(chunk(0, 0, len(others[0])))
    driver.start(3, PROMPT)
    driver.start(2, others[1])
    mixed = driver.step(chunk(2, 0, 7, samples=False), chunk(0, len(others[0])), chunk(3, 0, len(PROMPT)))
    assert mixed[0] is None
    second = driver.step(chunk(3, len(PROMPT)), chunk(2, 7, len(others[1]) - 7))
    assert [token(first[0]), token(mixed[1])] == answer(others[0])[:2]
    assert [token(mixed[2]), token(second[0])] == answer()[:2]
    assert token(second[1]) == answer(others[1])[0]


def test_a_row_goes_on_where_it_was_after_a_restart_in_another_row() -> None:
    driver = Driver()
    driver.start(0, PROMPT)
    begun = [token(driver.step(chunk(0, 0, len(PROMPT)))[0]), *generate(driver, 0, len(PROMPT), 4)]
    known = (*PROMPT, *begun)
    driver.start(2, known, prompt=len(PROMPT))
    resumed = token(driver.step(chunk(2, 0, len(known)))[0])
    assert [*begun, resumed, *generate(driver, 2, len(known), COUNT - 6)] == answer()


def test_penalties_survive_a_restart() -> None:
    params = SamplingParams(
        max_tokens=50, presence_penalty=2.0, frequency_penalty=1.5, repetition_penalty=1.3
    )
    whole, cut = Driver(), Driver()
    for driver in (whole, cut):
        driver.start(0, PROMPT, params)
    ids = [[token(driver.step(chunk(0, 0, len(PROMPT)))[0])] for driver in (whole, cut)]
    ids[0] += generate(whole, 0, len(PROMPT), 9)
    ids[1] += generate(cut, 0, len(PROMPT), 4)
    known = (*PROMPT, *ids[1])
    cut.start(1, known, params, prompt=len(PROMPT))
    ids[1].append(token(cut.step(chunk(1, 0, len(known)))[0]))
    ids[1] += generate(cut, 1, len(known), 4)
    assert ids[0] == ids[1]
    assert ids[0] != answer()[:10]


def test_a_row_with_nan_fails_alone_and_leaves_nothing_in_its_blocks() -> None:
    poisoned = 62
    assert poisoned not in (*PROMPT, *answer())
    embedding = model().embedding
    assert isinstance(embedding, CanonicalLinear)
    table = embedding.rows(np.arange(SHAPE.vocab, dtype=np.int32))
    table[poisoned] = np.nan
    broken = ReferenceBackend().prepare_linear([Dense(table)], [None], "embedding")
    driver = Driver(weights=replace(model(), embedding=broken))
    driver.start(0, (poisoned, *PROMPT), SamplingParams(max_tokens=1, temperature=0, logprobs=1))
    driver.start(1, PROMPT)
    hurt, sound = driver.step(chunk(0, 0, len(PROMPT) + 1), chunk(1, 0, len(PROMPT)))
    assert hurt is not None and hurt.failed and 0 <= hurt.token < SHAPE.vocab
    assert hurt.logprob is None
    assert sound is not None and not sound.failed and sound.token == answer()[0]
    driver.start(0, PROMPT)
    again = token(driver.step(chunk(0, 0, len(PROMPT)))[0])
    assert [again, *generate(driver, 0, len(PROMPT), COUNT - 1)] == answer()


def test_the_next_step_may_be_launched_before_the_last_one_is_read() -> None:
    driver = Driver()
    driver.start(0, PROMPT)
    driver.runner.launch(driver.plan(chunk(0, 0, len(PROMPT))))
    drawn = []
    for i in range(COUNT - 1):
        driver.runner.launch(driver.plan(chunk(0, len(PROMPT) + i)))
        assert driver.runner.in_flight == 2
        drawn.append(token(driver.runner.collect().sampled[0]))
    drawn.append(token(driver.runner.collect().sampled[0]))
    assert driver.runner.in_flight == 0
    assert drawn == answer()


def test_a_mask_may_be_written_between_body_and_head() -> None:
    driver = Driver()
    driver.start(0, PROMPT)
    driver.start(1, PROMPT)
    driver.runner.launch_body(driver.plan(chunk(0, 0, 4, samples=False), chunk(1, 0, len(PROMPT))))
    mask = np.zeros((1, SHAPE.vocab // 32), np.uint32)
    mask[0, 1] = 1 << 9
    driver.runner.launch_head(mask)
    assert token(driver.runner.collect().sampled[1]) == 41


def test_a_result_keeps_to_its_request_when_the_row_has_a_new_owner() -> None:
    asks = SamplingParams(max_tokens=1, logprobs=2)
    driver = Driver()
    driver.start(0, PROMPT, asks)
    driver.runner.launch(driver.plan(chunk(0, 0, len(PROMPT))))
    driver.start(0, PROMPT[:3])
    driver.runner.launch(driver.plan(chunk(0, 0, 3)))
    first, second = driver.runner.collect().sampled[0], driver.runner.collect().sampled[0]
    assert first is not None and first.logprob is not None and len(first.logprob.top) == 2
    assert second is not None and second.logprob is None


def test_logprobs_are_the_log_softmax_of_the_raw_logits() -> None:
    params = SamplingParams(max_tokens=1, temperature=1.7, top_k=1, logprobs=3, logit_bias=((4, 50.0),))
    driver = Driver()
    driver.start(0, PROMPT, params)
    sampled = driver.step(chunk(0, 0, len(PROMPT)))[0]
    assert sampled is not None and sampled.logprob is not None
    logits = naive_logits(model(), PROMPT)[-1]
    expected = logits - np.log(np.exp(logits).sum())
    best = np.argsort(-expected)[:3]
    assert sampled.token == sampled.logprob.token == 4
    assert sampled.logprob.logprob == pytest.approx(expected[4], abs=1e-4)
    assert [t for t, _ in sampled.logprob.top] == best.tolist()
    assert [p for _, p in sampled.logprob.top] == pytest.approx(expected[best], abs=1e-4)


def test_prompt_tokens_are_scored_across_chunks() -> None:
    params = SamplingParams(max_tokens=1, prompt_logprobs=2)
    driver = Driver()
    driver.start(0, PROMPT, params)
    driver.start(1, PROMPT[:5])
    driver.runner.launch(driver.plan(chunk(1, 0, 5), chunk(0, 0, 10, samples=False, scored=10)))
    driver.runner.launch(driver.plan(chunk(0, 10, 8, scored=7)))
    first, second = driver.runner.collect(), driver.runner.collect()
    assert first.scored[0] == ()
    scored = [*first.scored[1], *second.scored[0]]
    logits = naive_logits(model(), PROMPT)
    expected = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    assert [entry.token for entry in scored] == list(PROMPT[1:])
    right = [expected[i, t] for i, t in enumerate(PROMPT[1:])]
    assert [entry.logprob for entry in scored] == pytest.approx(right, abs=1e-4)
    assert [entry.top[0][0] for entry in scored] == np.argmax(expected[:-1], axis=-1).tolist()
    assert {len(entry.top) for entry in scored} == {2}


def test_nothing_is_scored_unless_asked() -> None:
    driver = Driver()
    driver.start(0, PROMPT)
    driver.runner.launch(driver.plan(chunk(0, 0, 3, samples=False)))
    assert driver.runner.collect().scored == ()


def test_more_rows_than_a_slice_of_the_head_are_all_drawn() -> None:
    count = HEAD_ROWS + 44
    driver = Driver(rows=count, context=16)
    for row in range(count):
        driver.start(row, PROMPT[row % 5 : row % 5 + 2])
    sampled = driver.step(*(chunk(row, 0, 2) for row in range(count)))
    first = [answer(PROMPT[i : i + 2])[0] for i in range(5)]
    assert [token(one) for one in sampled] == [first[row % 5] for row in range(count)]
