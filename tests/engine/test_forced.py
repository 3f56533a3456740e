"""Reading given tokens in one pass: the same whatever was read before, and what the engine itself would say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmrs_cli.engine.api import open_engine
from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.engine.forced import ForcedReader, Loaded, load
from llmrs_cli.engine.perplexity import Windows, score_text
from llmrs_cli.engine.types import Request, SamplingParams
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from tests.helpers.tiny_model import TinyModel, write_tiny

IDS = tuple(int(n) for n in np.random.default_rng(0).integers(0, 300, 40))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "m", TinyModel("qwen3"))


@pytest.fixture
def tiny(folder: Path) -> Loaded:
    return load(open_checkpoint(folder), ReferenceBackend())


def residual(reader: ForcedReader, ids: tuple[int, ...]) -> np.ndarray:
    body, step = reader.read(ids)
    assert len(step.scored_tokens) == len(ids) - 1
    assert step.scored_targets.tolist() == list(ids[1:])
    return np.array(body.hidden.residual)


def test_what_was_read_before_changes_nothing(tiny: Loaded) -> None:
    reader = ForcedReader(tiny, len(IDS))
    first = residual(reader, IDS[:20])
    residual(reader, IDS)
    residual(reader, IDS[30:])
    np.testing.assert_array_equal(residual(reader, IDS[:20]), first)
    np.testing.assert_array_equal(residual(ForcedReader(tiny, 20), IDS[:20]), first)


def test_other_ops_may_listen(tiny: Loaded) -> None:
    called = []

    class Listener:
        def __getattr__(self, name: str) -> Any:
            called.append(name)
            return getattr(tiny.backend, name)

    ForcedReader(tiny, 5).read(IDS[:5], Listener())
    assert called[0] == "embed" and called.count("attend") == tiny.spec.layers


def test_perplexity_is_that_of_the_engine_s_own_prompt_logprobs(folder: Path, tiny: Loaded) -> None:
    engine = open_engine(open_checkpoint(folder), ReferenceBackend(), context=64, rows=1)
    engine.submit(Request("a", IDS, SamplingParams(max_tokens=1, prompt_logprobs=0)))
    found = 0.0
    while engine.has_work:
        for event in engine.step():
            scores = event.prompt_logprobs or ()
            found -= sum(score.logprob for score in scores if score is not None)
    engine.close()
    assert score_text(tiny, IDS, Windows(64, 32)).nll == pytest.approx(found, rel=1e-5)
