"""Perplexity: every token counts once, with enough before it, and costs what the model's logits say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.engine.forced import Loaded, load
from llmrs_cli.engine.perplexity import Score, Windows, score_text
from llmrs_cli.engine.verify import forced_logits
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.errors import EngineFault
from tests.helpers.tiny_model import TinyModel, write_tiny

TEXT = tuple(int(n) for n in np.random.default_rng(0).integers(0, 300, 40))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    folder: Path = write_tiny(tmp_path_factory.mktemp("tiny"), TinyModel(layers=1))
    return load(open_checkpoint(folder), ReferenceBackend())


def cost(loaded: Loaded, ids: Sequence[int], first: int) -> float:
    """-log p of ids[first:] after what is before them, by the textbook."""
    logits = forced_logits(loaded, ids, first).astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    logprobs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return -float(sum(row[id] for row, id in zip(logprobs, ids[first:], strict=True)))


# -- windows --------------------------------------------------------------------------------------------


@given(
    count=st.integers(0, 300),
    length=st.integers(2, 50),
    stride=st.integers(1, 49),
    prefix=st.sampled_from([(), (1,), (1, 2)]),
)
def test_windows_score_every_token_once_and_never_the_first_alone(
    count: int, length: int, stride: int, prefix: tuple[int, ...]
) -> None:
    stride = min(stride, length - max(1, len(prefix))) or 1
    if len(prefix) + 1 > length or stride > length - max(1, len(prefix)):
        return
    windows = Windows(length, stride, prefix)
    scored: list[int] = []
    for start, first, stop in windows.over(count):
        assert len(prefix) + stop - start <= length
        assert start < first or prefix
        assert start == 0 or first - start + len(prefix) >= min(length - stride, first)
        scored += range(first, stop)
    assert scored == list(range(0 if prefix else 1, count))


def test_a_stride_is_how_far_apart_windows_begin() -> None:
    assert list(Windows(4, 2).over(8)) == [(0, 1, 4), (2, 4, 6), (4, 6, 8)]
    assert list(Windows(4, 3, prefix=(7,)).over(7)) == [(0, 0, 3), (3, 3, 6), (6, 6, 7)]


# -- scores ---------------------------------------------------------------------------------------------


def test_one_window_costs_what_its_logits_say(tiny: Loaded) -> None:
    score = score_text(tiny, TEXT, Windows(64, 32))
    assert (score.tokens, score.windows) == (39, 1)
    assert score.nll == pytest.approx(cost(tiny, TEXT, 1), rel=1e-6)
    assert score.perplexity == pytest.approx(math.exp(score.nll / 39))


def test_several_windows_cost_the_sum_of_their_tails(tiny: Loaded) -> None:
    calls: list[tuple[int, int]] = []
    score = score_text(tiny, TEXT, Windows(16, 12), lambda done, total: calls.append((done, total)))
    tails = [(0, 1, 16), (12, 16, 28), (24, 28, 40)]
    expected = sum(cost(tiny, TEXT[a:c], b - a) for a, b, c in tails)
    assert score.nll == pytest.approx(expected, rel=1e-6)
    assert calls == [(16, 40), (28, 40), (40, 40)]


def test_what_stands_before_a_text_stands_before_each_window(tiny: Loaded) -> None:
    score = score_text(tiny, TEXT, Windows(21, 20, prefix=(3,)))
    expected = sum(cost(tiny, (3, *TEXT[a : a + 20]), 1) for a in (0, 20))
    assert (score.tokens, score.windows) == (40, 2)
    assert score.nll == pytest.approx(expected, rel=1e-6)


def test_more_context_changes_what_a_token_costs(tiny: Loaded) -> None:
    assert score_text(tiny, TEXT, Windows(40, 1)).nll != score_text(tiny, TEXT, Windows(4, 3)).nll


def test_logits_that_are_no_numbers_are_a_fault(tiny: Loaded) -> None:
    norm = np.full_like(tiny.model.norm, np.nan)
    broken = replace(tiny, model=replace(tiny.model, norm=norm))
    with pytest.raises(EngineFault, match="logits are no numbers"):
        score_text(broken, TEXT, Windows(16, 8))


def test_bits_a_byte_do_not_depend_on_the_tokens() -> None:
    assert Score(tokens=10, windows=1, nll=8 * math.log(2)).bits_per_byte(4) == pytest.approx(2)
