"""With fixed bits a request's log-probabilities are the same whatever runs beside it and however it is cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llmrs_cli.engine.api import Engine, open_engine
from llmrs_cli.engine.limits import EngineLimits
from llmrs_cli.engine.scheduler import Scheduler
from llmrs_cli.engine.types import Request, SamplingParams
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from tests.helpers.soak import answers_with_logprobs
from tests.helpers.tiny_model import TinyModel, write_tiny


@pytest.fixture(params=["llama", "qwen3"])
def engine(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Engine]:
    from llmrs_cli.engine.backends.cuda import CudaBackend

    monkeypatch.setenv("LLMRS_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
    checkpoint = open_checkpoint(write_tiny(tmp_path, TinyModel(request.param)))
    opened = open_engine(checkpoint, CudaBackend(0, deterministic=True), context=512, rows=24, memory=2 << 30)
    yield opened
    opened.close()


def requests(tag: str) -> list[Request]:
    draw = np.random.default_rng(11)
    lengths = [1, 2, 63, 64, 65, 127, 128, 129, 200, 300]
    return [
        Request(
            f"{tag}{i}",
            tuple(draw.integers(0, 300, length).tolist()),
            SamplingParams(
                24, logprobs=2, prompt_logprobs=0, ignore_eos=True, temperature=0.7 * (i % 2), seed=i
            ),
            salt=tag,
        )
        for i, length in enumerate(lengths)
    ]


def untagged(found: dict[str, list[tuple[int, float]]]) -> dict[str, list[tuple[int, float]]]:
    return {name[1:]: values for name, values in found.items()}


def test_alone_together_and_twice_are_the_same_bits(engine: Engine) -> None:
    alone: dict[str, list[tuple[int, float]]] = {}
    for request in requests("a"):
        alone |= answers_with_logprobs(engine, [request])
    together = answers_with_logprobs(engine, requests("b"))
    again = answers_with_logprobs(engine, list(reversed(requests("c"))))
    assert untagged(alone) == untagged(together) == untagged(again)


@pytest.mark.parametrize("budget", [25, 70, 200])
def test_prompts_cut_anywhere_give_the_same_bits(engine: Engine, budget: int) -> None:
    whole = answers_with_logprobs(engine, requests("a"))
    limits: EngineLimits = replace(engine.limits, busy_budget=budget, idle_budget=budget)
    engine._scheduler = Scheduler(limits)
    cut = answers_with_logprobs(engine, requests("b"))
    assert untagged(whole) == untagged(cut)
