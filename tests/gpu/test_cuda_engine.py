"""The whole engine on the GPU, one step ahead of what it reads: every request ends, nothing leaks, all repeats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from llmrs_cli.engine.api import Engine, open_engine
from llmrs_cli.engine.backends.base import Backend
from llmrs_cli.engine.types import FinishReason, Request, SamplingParams
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from tests.gpu.halves import cp
from tests.helpers.tiny_model import TinyModel, write_tiny


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    from llmrs_cli.engine.backends.cuda import CudaBackend

    assert cp.cuda.runtime.getDeviceCount() > 0
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "xdg"))
    opened = CudaBackend(0)
    yield opened
    opened.close()


@pytest.fixture
def engine(backend: Backend, tmp_path: Path) -> Engine:
    folder = write_tiny(tmp_path, TinyModel())
    return open_engine(open_checkpoint(folder), backend, context=256, rows=8, memory=1 << 30)


def mixed_requests(count: int, tag: str) -> list[Request]:
    """Prompts of 1 to 150 tokens, greedy and sampled, some with penalties, log-probabilities or a seed."""
    rng = np.random.default_rng(7)
    requests = []
    for i in range(count):
        prompt = tuple(rng.integers(0, 300, int(rng.integers(1, 150))).tolist())
        params = SamplingParams(
            max_tokens=int(rng.integers(1, 40)),
            temperature=float(rng.choice([0.0, 0.8])),
            top_p=float(rng.choice([1.0, 0.9])),
            frequency_penalty=float(rng.choice([0.0, 0.5])),
            seed=i,
            ignore_eos=True,
            logprobs=2 if i % 5 == 0 else None,
            prompt_logprobs=1 if i % 7 == 0 else None,
        )
        requests.append(Request(f"{tag}{i}", prompt, params))
    return requests


def answers(engine: Engine, requests: list[Request]) -> dict[str, list[int]]:
    """Tokens by request, without the tag of its name."""
    for request in requests:
        engine.submit(request)
    found: dict[str, list[int]] = {request.id: [] for request in requests}
    while engine.has_work:
        for event in engine.step():
            found[event.request_id] += event.tokens
            assert event.error is None
            assert event.finish in (None, FinishReason.LENGTH)
    engine.check()
    return {name[1:]: tokens for name, tokens in found.items()}


def test_all_requests_end_and_repeat(engine: Engine) -> None:
    first, second = (answers(engine, mixed_requests(30, tag)) for tag in "ab")
    for request in mixed_requests(30, ""):
        assert len(first[request.id]) == request.params.max_tokens
    agreeing = sum(first[name] == second[name] for name in first)
    # The second run finds prefixes in the cache and so meets other sizes of steps: rounding may part a few.
    assert agreeing >= 24


def test_an_abort_leaves_the_others_alone(engine: Engine) -> None:
    requests = mixed_requests(12, "c")
    for request in requests:
        engine.submit(request)
    done: dict[str, FinishReason] = {}
    for number in range(10_000):
        if not engine.has_work:
            break
        if number == 3:
            engine.abort("c4")
        for event in engine.step():
            if event.finish is not None:
                done[event.request_id] = event.finish
    assert len(done) == 12
    assert engine.stats().blocks_used == 0
    engine.check()
