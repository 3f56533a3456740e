"""The comparison with the reference: equal models agree, and a wrong weight is found where it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.engine.forced import Loaded
from llmrs_cli.engine.verify import (
    BOUNDS,
    Bound,
    bound_for,
    compare,
    find_culprit,
    first_difference,
    forced_logits,
)
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.engine.weights.load import load_model
from tests.helpers.tiny_model import TinyModel, write_tiny

PROMPT = (5, 9, 200, 31)
BOUND = Bound(margin=1e-3, error=1e-5)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    folder: Path = write_tiny(tmp_path_factory.mktemp("tiny"), TinyModel())
    checkpoint = open_checkpoint(folder)
    backend = ReferenceBackend()
    return Loaded(backend, load_model(checkpoint, backend), checkpoint.spec)


def greedy(loaded: Loaded, prompt: Sequence[int], count: int) -> list[int]:
    """One full pass per token: slow and obvious."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(forced_logits(loaded, [*ids, 0], len(ids))[-1].argmax()))
    return ids[len(prompt) :]


def broken(loaded: Loaded, layer: int, part: str, factor: float = 1.5) -> Loaded:
    """The same model with one norm of one layer scaled."""
    layers = list(loaded.model.layers)
    scaled = getattr(layers[layer], part) * np.float32(factor)
    layers[layer] = replace(layers[layer], **{part: scaled})
    return replace(loaded, model=replace(loaded.model, layers=tuple(layers)))


def test_a_model_agrees_with_itself(tiny: Loaded) -> None:
    answer = greedy(tiny, PROMPT, 6)
    verdict = compare(tiny, tiny, PROMPT, answer, BOUND)
    assert verdict.agrees
    assert (verdict.tokens, verdict.error) == (6, 0.0)


def test_one_forced_pass_equals_a_pass_per_token(tiny: Loaded) -> None:
    ids = [*PROMPT, *greedy(tiny, PROMPT, 5)]
    whole = forced_logits(tiny, ids, len(PROMPT))
    single = [forced_logits(tiny, ids[: n + 1], n)[-1] for n in range(len(PROMPT), len(ids))]
    np.testing.assert_allclose(whole, np.array(single), rtol=1e-4, atol=1e-4)


def test_a_wrong_token_is_named_with_both_logits(tiny: Loaded) -> None:
    answer = greedy(tiny, PROMPT, 6)
    right = forced_logits(tiny, [*PROMPT, *answer], len(PROMPT))
    wrong = [*answer[:3], int(right[3].argmin()), *answer[4:]]
    difference = compare(tiny, tiny, PROMPT, wrong, BOUND).difference
    assert difference is not None
    assert (difference.position, difference.expected, difference.found) == (3, answer[3], wrong[3])
    assert difference.margin == pytest.approx(float(right[3].max() - right[3].min()), rel=1e-4)
    assert difference.expected_logits[0] == difference.expected_logits[1]
    assert difference.culprit is None


@pytest.mark.parametrize(
    ("layer", "part", "culprit"),
    [
        (0, "attention_norm", "layer 0 norm_qkv_rope_store"),
        (0, "mlp_norm", "layer 0 norm_gate_up"),
        (1, "attention_norm", "layer 1 norm_qkv_rope_store"),
        (1, "mlp_norm", "layer 1 norm_gate_up"),
    ],
)
def test_the_first_op_that_strays_is_found(tiny: Loaded, layer: int, part: str, culprit: str) -> None:
    assert find_culprit(broken(tiny, layer, part), tiny, [*PROMPT, 1], BOUND.error) == culprit


def test_a_broken_model_shows_in_the_error(tiny: Loaded) -> None:
    bad = broken(tiny, 0, "mlp_norm", 3.0)
    assert compare(bad, tiny, PROMPT, greedy(bad, PROMPT, 4), BOUND).error > 1e-3


def logits(*rows: Sequence[float]) -> Any:
    return np.array(rows, np.float32)


@pytest.mark.parametrize(
    ("rows", "answer", "position"),
    [
        (logits([0, 2, 1], [3, 0, 0]), [1, 0], None),
        (logits([0, 2, 1], [3, 0, 0]), [1, 1], 1),
        (logits([0, 2, 1.95]), [2], None),
        (logits([0, 2, 1.85]), [2], 0),
        (logits([0, np.nan, 1]), [2], 0),
    ],
)
def test_only_a_clear_margin_decides(rows: Any, answer: list[int], position: int | None) -> None:
    assert first_difference(rows, answer, 0.1) == position


@pytest.mark.parametrize("backend", ["reference", "cpu", "cuda"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", None])
def test_every_backend_and_dtype_has_a_bound(backend: str, dtype: str | None) -> None:
    assert bound_for(backend, dtype) in BOUNDS.values()
