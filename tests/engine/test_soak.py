"""The long loads in small: the same functions that run for minutes on a GPU, on a tiny model for a second."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from llmrs_cli.engine.api import Engine, open_engine
from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.engine.model.spec import from_config
from llmrs_cli.engine.types import Request, SamplingParams
from llmrs_cli.engine.weights.random import random_checkpoint
from tests.helpers import soak
from tests.helpers.tiny_model import TinyModel, tiny_config


@pytest.fixture
def engine() -> Iterator[Engine]:
    spec = from_config(tiny_config(TinyModel(hidden=32, ffn=32, heads=2, kv_heads=1, layers=1, vocab=64)), {})
    opened = open_engine(random_checkpoint(spec), ReferenceBackend(), context=256, rows=4, memory=1 << 28)
    yield opened
    opened.close()


def test_everybody_gets_an_answer(engine: Engine) -> None:
    requests = list(soak.mixed(np.random.default_rng(0), engine.vocab, 12, 120, "r"))
    looks: list[int] = []
    answers = soak.answer_all(engine, requests, lambda: looks.append(1))
    assert {name: len(tokens) for name, tokens in answers.items()} == {
        request.id: request.params.max_tokens for request in requests
    }


def test_rows_stay_busy(engine: Engine) -> None:
    watch = soak.Watch(soak.resident_bytes)
    soak.step_for_long(engine, 120, watch.look)
    assert len(watch.seen) == 2
    assert engine.stats().requests > 4


def test_aborts_leave_the_survivors_alone(engine: Engine) -> None:
    survivors = [
        Request(f"k{i}", (1 + i, 2, 3), SamplingParams(30, seed=i, ignore_eos=True)) for i in range(2)
    ]
    calm = soak.answer_all(engine, [*survivors])
    assert soak.abort_at_random(engine, 30, survivors) == calm


def test_prefixes_from_the_cache_change_no_bit_on_the_reference(engine: Engine) -> None:
    def run(salt: bool) -> dict[str, list[tuple[int, float]]]:
        requests = soak.at_block_edges(np.random.default_rng(3), engine.vocab, 10, 16, salt)
        return soak.answers_with_logprobs(engine, requests)

    alone, shared = run(True), run(False)
    assert engine.stats().cached_tokens > 0
    assert {name: [t for t, _ in tokens] for name, tokens in alone.items()} == {
        name: [t for t, _ in tokens] for name, tokens in shared.items()
    }


def test_growth_counts_from_when_everything_is_warm() -> None:
    sizes = iter([5, 9, 9, 9, 9, 12])
    watch = soak.Watch(lambda: next(sizes))
    for _ in range(6):
        watch.look()
    assert watch.growth == 3
