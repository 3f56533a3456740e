"""The probability of a label as the whole answer: exact on scripted models, also where one begins another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from llmrs_cli.errors import ContextLengthError, RequestError
from llmrs_cli.text.choices import score_labels
from llmrs_cli.text.generate import GenerateOptions, TextEngine
from tests.helpers.byte_tokenizer import END_OF_TEXT, IM_END, byte_id
from tests.helpers.ladder import NEWLINE, Ladder, write_ladder
from tests.helpers.tiny_model import TinyModel, write_tiny

A, B, C = (byte_id(ord(letter)) for letter in "ABC")
VOCAB = 384


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[TextEngine]:
    """After a prompt A and B are as likely as e² to e¹; after A the answer ends or goes on with B."""
    table = {
        NEWLINE: {A: 12.0, B: 11.0},
        A: {IM_END: 10.0, B: 11.0, END_OF_TEXT: 9.0},
        B: {IM_END: 15.0},
    }
    folder = write_ladder(tmp_path / "model", Ladder(vocab=VOCAB, table=table))
    with TextEngine.open(folder, device="reference", rows=4) as opened:
        yield opened


def test_labels_that_begin_each_other_are_told_apart_by_their_end(engine: TextEngine) -> None:
    prompt = engine.render([{"role": "user", "content": "?"}]).ids
    a, ab = score_labels(engine, prompt, ["A", "AB"])
    # p(end | A), with either end token, against p(B | A) times a certain end
    ends, more = math.exp(10.0) + math.exp(9.0), math.exp(11.0)
    assert a == pytest.approx(ends / (ends + more), rel=1e-3)
    assert a + ab == pytest.approx(1.0)


def test_shares_sum_to_one_in_the_order_of_the_labels(engine: TextEngine) -> None:
    prompt = engine.render([{"role": "user", "content": "?"}]).ids
    forward = score_labels(engine, prompt, ["A", "B", "AB", "C"])
    backward = score_labels(engine, prompt, ["C", "AB", "B", "A"])
    assert sum(forward) == pytest.approx(1.0)
    assert forward == pytest.approx(backward[::-1])
    assert forward[3] < 1e-6


def test_the_score_is_that_of_the_tokens_one_by_one(tmp_path: Path) -> None:
    """Against log-probabilities of free generation, forced by bias, on random weights."""
    folder = write_tiny(tmp_path / "model", TinyModel(context=128))
    with TextEngine.open(folder, device="reference", rows=2) as engine:
        prompt = engine.render([{"role": "user", "content": "Which?"}]).ids
        scores = []
        for label in ("no", "yes"):
            ids = [byte_id(ord(letter)) for letter in label]
            logs = [_next(engine, (*prompt, *ids[:n]), [id]) for n, id in enumerate(ids)]
            scores.append(sum(logs) + _next(engine, (*prompt, *ids), engine.eos_ids))
        difference = math.exp(scores[1] - scores[0])
        no, yes = score_labels(engine, prompt, ["no", "yes"])
        assert yes / no == pytest.approx(difference, rel=1e-3)


def _next(engine: TextEngine, prompt: tuple[int, ...], wanted: Sequence[int]) -> float:
    """log of the summed probability that one of the ids comes next."""
    total = 0.0
    for id in wanted:
        options = GenerateOptions(max_tokens=1, temperature=0.0, logprobs=0, logit_bias=((id, 100.0),))
        total += math.exp(engine.start(prompt, options).result().choices[0].logprobs[0].logprob)
    return math.log(total)


@pytest.mark.parametrize("labels", [[], ["A"], ["A", "A"], ["A", ""]])
def test_what_is_no_choice_is_refused(engine: TextEngine, labels: list[str]) -> None:
    with pytest.raises(RequestError, match="two different"):
        score_labels(engine, (NEWLINE,), labels)


def test_a_label_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "model", TinyModel(context=64))
    with TextEngine.open(folder, device="reference", rows=1) as engine, pytest.raises(ContextLengthError):
        score_labels(engine, (NEWLINE,) * 60, ["yes", "x" * 20])
