"""Equal rows: which are certain to have one answer, and how many answers are remembered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.batch.records import Ask
from llmrs_cli.batch.twins import MAX_TOKENS, Twins, twin_key
from llmrs_cli.engine import FinishReason
from llmrs_cli.text.generate import ChoiceResult, GenerateOptions, GenerationResult, LogProb, Usage
from llmrs_cli.text.options import SamplingDefaults

GREEDY = GenerateOptions(max_tokens=5, temperature=0.0, seed=1)


def key(
    prompt: tuple[int, ...] = (1, 2),
    options: GenerateOptions = GREEDY,
    default: float = 0.7,
    **own: Any,
) -> bytes | None:
    return twin_key(prompt, options, Ask(text="x", options=own), SamplingDefaults(temperature=default))


def answer(tokens: int = 1, *, logprobs: bool = False) -> GenerationResult:
    scores = (LogProb(7, "x", b"x", -1.0),) if logprobs else ()
    choice = ChoiceResult("x", (7,), FinishReason.STOP, scores)
    return GenerationResult((choice,), Usage(1, tokens, 0))


def test_greedy_rows_are_equal_whatever_their_seeds() -> None:
    assert key() == key(options=replace(GREEDY, seed=2)) is not None
    assert key(options=replace(GREEDY, temperature=None), default=0.0) is not None


def test_rows_that_draw_are_equal_only_with_a_seed_of_their_own() -> None:
    drawn = replace(GREEDY, temperature=1.0)
    assert key(options=drawn) is None
    assert key(options=replace(GREEDY, temperature=None)) is None, "the model's own temperature"
    assert key(options=drawn, seed=1) == key(options=drawn, seed=1) is not None
    assert key(options=drawn, seed=1) != key(options=replace(drawn, seed=2), seed=2)


@pytest.mark.parametrize(
    "change",
    [{"max_tokens": 6}, {"n": 2}, {"stop": ("a",)}, {"grammar": "g"}, {"logprobs": 0}, {"top_k": 3}],
)
def test_any_other_option_makes_another_row(change: dict[str, Any]) -> None:
    assert key() != key(options=replace(GREEDY, **change))


@given(st.lists(st.integers(0, 2**31), max_size=5), st.lists(st.integers(0, 2**31), max_size=5))
def test_keys_are_equal_where_prompts_are(a: list[int], b: list[int]) -> None:
    assert (key(tuple(a)) == key(tuple(b))) is (a == b)


def test_an_answer_is_found_from_its_beginning_on() -> None:
    twins: Twins[str] = Twins(10)
    assert (twins.running(b"k"), twins.answer(b"k")) == (None, None)
    twins.begin(b"k", "first")
    assert twins.running(b"k") == "first"
    kept = answer()
    twins.end(b"k", kept)
    assert (twins.running(b"k"), twins.answer(b"k")) == (None, kept)


def test_what_failed_or_is_large_is_not_remembered() -> None:
    twins: Twins[str] = Twins(10)
    for name, result in ((b"a", None), (b"b", answer(logprobs=True))):
        twins.begin(name, "x")
        twins.end(name, result)
        assert (twins.running(name), twins.answer(name)) == (None, None)


@given(st.lists(st.integers(1, MAX_TOKENS // 2), max_size=30), st.integers(1, 8))
def test_the_latest_answers_are_kept_as_long_as_there_is_room(sizes: list[int], window: int) -> None:
    twins: Twins[int] = Twins(window)
    for number, size in enumerate(sizes):
        twins.begin(b"%d" % number, number)
        twins.end(b"%d" % number, answer(size))
    kept = [number for number in range(len(sizes)) if twins.answer(b"%d" % number) is not None]
    assert kept == list(range(len(sizes) - len(kept), len(sizes))), "the latest ones"
    assert len(kept) <= window
    assert sum(sizes[number] for number in kept) <= MAX_TOKENS
    if kept and kept[0] > 0 and len(kept) < window:
        assert sum(sizes[kept[0] - 1 :]) > MAX_TOKENS, "no more are forgotten than must be"
