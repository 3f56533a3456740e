"""What holds in the end: a caller's word first, then the model's files, then ours."""

from __future__ import annotations

from typing import Any

import pytest

from llmrs_cli.engine import check_params
from llmrs_cli.errors import ModelError, RequestError
from llmrs_cli.text.options import GenerateOptions, SamplingDefaults, model_defaults, resolve

QWEN = {"do_sample": True, "repetition_penalty": 1.1, "temperature": 0.7, "top_p": 0.8, "top_k": 20}


def resolved(generation: dict[str, Any] | None = None, **options: Any) -> Any:
    return resolve(GenerateOptions(**options), model_defaults(generation or {}), eos_ids=(300,), room=24)


def test_the_models_defaults_hold_where_nothing_is_said() -> None:
    params = resolved(QWEN)
    assert (params.temperature, params.top_p, params.top_k, params.repetition_penalty) == (0.7, 0.8, 20, 1.1)
    assert (
        str(model_defaults(QWEN))
        == "temperature 0.7, top-p 0.8, top-k 20, repetition penalty 1.1 (from the model)"
    )


def test_without_a_file_ours_hold() -> None:
    params = resolved()
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.7, 1.0, 0, 0.0)
    assert str(SamplingDefaults()) == "temperature 0.7"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0),
        ("temperature", 1.0),
        ("repetition_penalty", 1.0),
        ("top_p", 1.0),
        ("top_p", 0),
        ("top_k", 0),
    ],
)
def test_an_explicit_value_wins_even_if_it_is_neutral(name: str, value: float) -> None:
    assert getattr(resolved(QWEN, **{name: value}), name) == value


def test_greedy_models_stay_greedy_unless_asked() -> None:
    greedy = {"do_sample": False, "temperature": 0.6}
    assert resolved(greedy).temperature == 0.0
    assert resolved(greedy, temperature=0.5).temperature == 0.5


@pytest.mark.parametrize("generation", [{"top_k": -1}, {"top_k": None}, {"max_length": 20}, {"top_p": 1}])
def test_harmless_oddities_of_published_files_are_understood(generation: dict[str, Any]) -> None:
    assert resolved(generation).top_k == 0
    assert resolved(generation).top_p == 1.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"),
        ("temperature", -1),
        ("temperature", float("nan")),
        ("top_p", 7),
        ("min_p", True),
    ],
)
def test_a_value_of_no_use_in_the_file_is_a_model_error(name: str, value: object) -> None:
    with pytest.raises(ModelError, match=rf"generation_config\.json.*{name}"):
        model_defaults({name: value})


def test_an_answer_may_fill_what_the_prompt_leaves_and_no_more() -> None:
    assert resolved().max_tokens == 24
    assert resolved(max_tokens=5).max_tokens == 5
    assert resolved(max_tokens=1000).max_tokens == 24


def test_end_ids_are_the_models_and_the_callers_without_repeats() -> None:
    assert resolved(stop_token_ids=(5, 300)).stop_ids == (300, 5)


def test_a_seed_is_drawn_where_none_is_given() -> None:
    assert resolved(seed=0).seed == 0
    seeds = {resolved().seed for _ in range(4)}
    assert len(seeds) == 4
    for seed in seeds:
        check_params(resolved(seed=seed), vocab=1024)


@pytest.mark.parametrize("options", [{"n": 0}, {"n": 129}, {"stop": ("",)}, {"stop": ("x",) * 17}])
def test_what_only_the_text_layer_sees_is_checked_here(options: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as error:
        resolved(**options)
    assert error.value.param == next(iter(options))
