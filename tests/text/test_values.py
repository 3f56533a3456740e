"""Plain values of the text layer: options that win or give way, probabilities of labels, named log-probabilities."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine import FinishReason, TokenLogprob, check_params
from llmrs_cli.errors import ModelError, RequestError
from llmrs_cli.text.choices import _log_sum, _shares, _tail
from llmrs_cli.text.events import ChoiceResult, LogProb, Usage, named
from llmrs_cli.text.options import KINDS, GenerateOptions, SamplingDefaults, model_defaults, resolve
from llmrs_cli.text.tokenizer import Tokenizer
from tests.helpers.byte_tokenizer import IM_END, byte_id

VALUES = {
    "temperature": st.floats(0, 2),
    "top_k": st.integers(0, 1000),
    "top_p": st.floats(0, 1),
    "min_p": st.floats(0, 1),
    "repetition_penalty": st.floats(0.1, 5),
}
GIVEN = st.fixed_dictionaries({}, optional=VALUES)
JSON: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([])
)


# -- options -------------------------------------------------------------------------------------------


@given(GIVEN, GIVEN)
def test_what_is_said_wins_and_what_is_not_is_the_models(said: dict[str, Any], file: dict[str, Any]) -> None:
    defaults = model_defaults(file)
    params = resolve(GenerateOptions(**said), defaults, eos_ids=(), room=9)
    for name in KINDS:
        wanted = said.get(name, file.get(name, getattr(SamplingDefaults(), name)))
        assert getattr(params, name) == wanted
    check_params(params, vocab=1)
    assert defaults.from_model is bool(file)


@given(st.dictionaries(st.sampled_from([*KINDS, "do_sample", "eos_token_id"]), JSON))
def test_any_file_gives_defaults_that_can_be_used_or_an_error_that_names_it(file: dict[str, Any]) -> None:
    try:
        defaults = model_defaults(file)
    except ModelError as error:
        assert error.message.startswith("generation_config.json is not usable: ")
        assert any(name in error.message for name in KINDS)
        assert len(error.message) < 200
        return
    check_params(resolve(GenerateOptions(), defaults, eos_ids=(), room=1), vocab=1)
    if file.get("do_sample") is False:
        assert defaults.temperature == 0


@given(GIVEN)
def test_the_line_at_start_names_what_is_not_neutral(file: dict[str, Any]) -> None:
    line = str(model_defaults(file))
    assert line.startswith("temperature ")
    assert line.endswith("(from the model)") is bool(file)
    for name, neutral in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0), ("repetition_penalty", 1.0)):
        words = name.replace("top_", "top-").replace("min_", "min-").replace("_", " ")
        assert (words in line) is (file.get(name, neutral) != neutral)


@given(st.integers(1, 10**6), st.one_of(st.none(), st.integers(1, 10**7)))
def test_an_answer_is_never_longer_than_there_is_room(room: int, asked: int | None) -> None:
    params = resolve(GenerateOptions(max_tokens=asked), SamplingDefaults(), eos_ids=(), room=room)
    assert params.max_tokens == (room if asked is None else min(asked, room))


@given(st.lists(st.integers(0, 9), max_size=5), st.lists(st.integers(0, 9), max_size=5))
def test_end_tokens_are_each_named_once_the_models_first(own: list[int], asked: list[int]) -> None:
    options = GenerateOptions(stop_token_ids=tuple(asked))
    found = resolve(options, SamplingDefaults(), eos_ids=tuple(own), room=1).stop_ids
    assert found == tuple(dict.fromkeys([*own, *asked]))


@pytest.mark.parametrize(("name", "value"), [("ignore_eos", True), ("min_tokens", 3)])
def test_a_form_that_ends_by_itself_goes_with_nothing_that_says_when_to_end(name: str, value: Any) -> None:
    options = replace(GenerateOptions(grammar="g"), **{name: value})
    with pytest.raises(RequestError, match=f"{name} does not go with a form") as caught:
        resolve(options, SamplingDefaults(), eos_ids=(), room=9)
    assert caught.value.param == name


def test_options_that_a_caller_leaves_out_say_nothing() -> None:
    for field in fields(GenerateOptions):
        assert getattr(GenerateOptions(), field.name) in (None, 0, 0.0, 1, (), "", False), field.name


# -- probabilities of labels ---------------------------------------------------------------------------


LOGS = st.lists(st.floats(-200, 0), min_size=1, max_size=8)


@given(LOGS)
def test_shares_of_labels_add_up_to_one_and_keep_their_order(scores: list[float]) -> None:
    shares = _shares(scores)
    assert sum(shares) == pytest.approx(1.0)
    assert all(0 <= share <= 1 for share in shares)
    assert sorted(range(len(scores)), key=scores.__getitem__) == sorted(
        range(len(scores)), key=lambda i: (shares[i], scores[i])
    )


@given(LOGS, st.floats(-500, 500))
def test_shares_are_ratios(scores: list[float], shift: float) -> None:
    assert _shares([score + shift for score in scores]) == pytest.approx(_shares(scores), abs=1e-9)


@given(LOGS)
def test_a_sum_of_logarithms_is_that_of_the_probabilities(scores: list[float]) -> None:
    found = _log_sum(scores)
    assert found >= max(scores)
    assert found <= max(scores) + math.log(len(scores)) + 1e-12
    if max(scores) > -50:
        assert math.exp(found) == pytest.approx(sum(math.exp(score) for score in scores))


def test_labels_that_are_all_impossible_are_equally_likely() -> None:
    assert _shares([-math.inf, -math.inf]) == [0.5, 0.5]
    assert _shares([-math.inf, -3.0]) == [0.0, 1.0]


@given(st.lists(st.floats(-9, 0), min_size=2, max_size=9), st.data())
def test_a_tail_is_the_last_tokens_of_a_prompt(scores: list[float], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(scores)))
    entries = [None, *(LogProb(1, "", b"", score) for score in scores)]
    assert _tail(entries, count) == pytest.approx(sum(scores[-count:]))


# -- what is told of tokens ----------------------------------------------------------------------------


def test_a_log_probability_has_text_and_exact_bytes(t_byte: Tokenizer) -> None:
    part = byte_id(0xF0)
    score = TokenLogprob(byte_id(ord("a")), -0.5, ((part, -1.0), (IM_END, -2.0)))
    found = named(score, t_byte)
    assert (found.token, found.text, found.data, found.logprob) == (byte_id(ord("a")), "a", b"a", -0.5)
    assert [(other.token, other.text, other.data) for other in found.top] == [
        (part, "\ufffd", b"\xf0"),
        (IM_END, "<|im_end|>", b"<|im_end|>"),
    ]
    assert all(other.top == () for other in found.top)


def test_without_a_tokenizer_a_log_probability_has_ids_alone() -> None:
    found = named(TokenLogprob(7, -0.5, ((8, -1.0),)), None)
    assert (found.token, found.text, found.data) == (7, "", b"")
    assert [(other.token, other.logprob) for other in found.top] == [(8, -1.0)]


@given(st.lists(st.integers(0, 255), min_size=1, max_size=12))
def test_bytes_of_tokens_join_to_the_text(t_byte: Tokenizer, data: list[int]) -> None:
    scores = [named(TokenLogprob(byte_id(byte), -1.0), t_byte) for byte in data]
    assert b"".join(score.data for score in scores) == bytes(data)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_usage_adds_up(prompt: int, answer: int) -> None:
    assert Usage(prompt, answer, 0).total_tokens == prompt + answer


def test_an_answer_is_a_value() -> None:
    one = ChoiceResult("a", (1,), FinishReason.STOP)
    assert one == ChoiceResult("a", (1,), FinishReason.STOP)
    assert hash(one) == hash(ChoiceResult("a", (1,), FinishReason.STOP))
    with pytest.raises(AttributeError):
        one.text = "b"  # type: ignore[misc]
