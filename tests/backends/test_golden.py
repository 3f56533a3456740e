"""Whole models against stored right answers, computed by another engine in float32.

Nine small checkpoints in the real formats, and the built-in model (skipped where its file is not).
Rounding may decide where the two best logits are closer than a bound; after such a position a free answer
may go its own way, while a forced one (every position given the right tokens so far) goes on.
"""

from __future__ import annotations

import json
import os
from functools import cache
from typing import Any

import numpy as np
import pytest

from llmrs_cli.engine.backends.base import Backend
from llmrs_cli.engine.backends.handles import ModelWeights
from llmrs_cli.engine.backends.registry import open_backend
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.engine.weights.load import load_model
from tests.conftest import DATA
from tests.helpers.generate import generate
from tests.helpers.naive import forced_logits
from tests.helpers.smollm2 import require_smollm2
from tests.helpers.tolerances import (
    GOLDEN_LOGITS,
    GOLDEN_MARGIN,
    SMOLLM2_FORCED_MARGIN,
    SMOLLM2_FREE_MARGIN,
)

CHECKPOINTS = sorted(path.name for path in (DATA / "golden" / "checkpoints").iterdir())


def decided(margins: list[float], bound: float) -> int:
    """How many leading positions have a margin of at least `bound`."""
    return next((i for i, margin in enumerate(margins) if margin < bound), len(margins))


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_small_checkpoints_give_the_stored_logits_and_answers(backend: Backend, name: str) -> None:
    folder = DATA / "golden" / "checkpoints" / name
    checkpoint = open_checkpoint(folder)
    model, vocab = load_model(checkpoint, backend), checkpoint.spec.vocab
    expected = json.loads((folder / "expected.json").read_text())
    prompts = [row["prompt_ids"] for row in expected]
    logits = forced_logits(backend, model, prompts, [1] * len(prompts), vocab)
    answers = generate(backend, model, vocab, prompts, len(expected[0]["greedy_ids"]))
    for row, last, answer in zip(
        expected, (part[0].astype(np.float64) for part in logits), answers, strict=True
    ):
        near = GOLDEN_LOGITS[backend.name]
        assert last[:16] == pytest.approx(row["first_logits_head"], abs=near)
        assert np.logaddexp.reduce(last) == pytest.approx(row["first_logsumexp"], abs=near)
        length = decided(row["top2_margin"], GOLDEN_MARGIN[backend.name])
        assert answer[:length] == row["greedy_ids"][:length]


def test_margins_decide_enough_of_the_small_answers_to_test_anything() -> None:
    for name in CHECKPOINTS:
        rows = json.loads((DATA / "golden" / "checkpoints" / name / "expected.json").read_text())
        assert sum(decided(row["top2_margin"], max(GOLDEN_MARGIN.values())) for row in rows) >= 20


# -- the built-in model -----------------------------------------------------------------------------------


@cache
def smollm2_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((DATA / "golden" / "smollm2-135m-q4_1-greedy.json").read_text())
    return rows


@pytest.fixture(scope="module")
def smollm2(backend: Backend) -> tuple[ModelWeights, int]:
    """The built-in model on the backend, and its vocabulary."""
    checkpoint = open_checkpoint(require_smollm2())
    return load_model(checkpoint, backend, context=256), checkpoint.spec.vocab


def test_smollm2_given_the_right_tokens_agrees_at_every_decided_position(
    backend: Backend, smollm2: tuple[ModelWeights, int]
) -> None:
    rows = smollm2_rows()
    sequences = [row["prompt_ids"] + row["greedy_ids"][:-1] for row in rows]
    model, vocab = smollm2
    parts = forced_logits(backend, model, sequences, [len(row["greedy_ids"]) for row in rows], vocab)
    for row, logits in zip(rows, parts, strict=True):
        clear = np.array(row["top2_margin"]) > SMOLLM2_FORCED_MARGIN
        chosen = np.array(row["greedy_ids"])
        assert np.argmax(logits, axis=-1)[clear].tolist() == chosen[clear].tolist()
        wide = logits.astype(np.float64)
        logprobs = wide[np.arange(len(chosen)), chosen] - np.logaddexp.reduce(wide, axis=-1)
        assert logprobs == pytest.approx(row["logprob"], abs=GOLDEN_LOGITS[backend.name])


@pytest.mark.timeout(300)
def test_smollm2_answers_freely_as_stored(backend: Backend, smollm2: tuple[ModelWeights, int]) -> None:
    # The reference widens all weights at each step: a few tokens of a few answers stand for the rest.
    rows, count = (3, 4) if backend.name == "reference" else (12, 64)
    check_free(backend, smollm2, smollm2_rows()[:rows], count)


@pytest.mark.soak
@pytest.mark.skipif(os.environ.get("SOAK") != "1", reason="long: run with SOAK=1")
@pytest.mark.timeout(1800)
def test_smollm2_answers_freely_as_stored_to_the_end_on_the_reference() -> None:
    backend = open_backend("reference")
    checkpoint = open_checkpoint(require_smollm2())
    loaded = load_model(checkpoint, backend, context=256), checkpoint.spec.vocab
    check_free(backend, loaded, smollm2_rows(), 64)


def check_free(
    backend: Backend, loaded: tuple[ModelWeights, int], rows: list[dict[str, Any]], count: int
) -> None:
    """Up to `count` tokens of each answer, as far as margins decide."""
    answers = generate(backend, *loaded, [row["prompt_ids"] for row in rows], count)
    for row, answer in zip(rows, answers, strict=True):
        length = min(count, decided(row["top2_margin"], SMOLLM2_FREE_MARGIN))
        assert answer[:length] == row["greedy_ids"][:length]
