"""Rotary sections of a configuration, key by key: what is read, what stands in, what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine.model.fields import MAX_CONTEXT, Fields
from llmrs_cli.engine.model.rope_config import RopeSpec, rope_from_config, stretched_context, yarn_magnitude
from llmrs_cli.errors import ModelError

SECTIONS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32768},
}
KINDS = st.sampled_from(["default", *SECTIONS])


def read(**values: Any) -> RopeSpec:
    return rope_from_config(Fields(values, "config.json"), 4096)


def section(kind: str, **keys: Any) -> dict[str, Any]:
    return {"rope_type": kind} | SECTIONS.get(kind, {}) | keys


def refusal(**values: Any) -> str:
    with pytest.raises(ModelError) as caught:
        read(**values)
    return str(caught.value)


# -- the base ---------------------------------------------------------------------------------------------


def test_a_model_that_says_nothing_turns_by_ten_thousand() -> None:
    assert read() == RopeSpec() and RopeSpec().theta == 10000.0


@pytest.mark.parametrize(
    "values",
    [
        {"rope_theta": 5e5},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_parameters": {"rope_theta": 5e5}},
        {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "default"}},
        {"rope_theta": 5e5, "rope_scaling": None},
        {"rope_theta": 5e5, "rope_parameters": {}},
    ],
)
def test_the_base_may_stand_in_the_section_or_outside(values: dict[str, Any]) -> None:
    assert read(**values) == RopeSpec(theta=5e5)


@given(kind=KINDS, theta=st.floats(2.0, 1e12))
def test_any_spelling_of_one_section_means_the_same(kind: str, theta: float) -> None:
    keys = section(kind)
    old = {"type" if key == "rope_type" else key: value for key, value in keys.items()}
    new = read(rope_parameters=keys | {"rope_theta": theta})
    assert new.kind == kind and new.theta == theta
    assert read(rope_scaling=old, rope_theta=theta) == new
    assert read(rope_scaling=old | keys, rope_theta=theta) == new
    assert read(rope_scaling=old, rope_parameters=keys, rope_theta=theta) == new


@pytest.mark.parametrize("theta", [1.0, 0, -5, math.inf, math.nan, "10000", True, [1e4]])
def test_a_base_that_turns_nothing_is_refused(theta: Any) -> None:
    assert "rope_theta" in refusal(rope_theta=theta)
    assert "rope_theta" in refusal(rope_parameters={"rope_type": "default", "rope_theta": theta})


# -- sections -----------------------------------------------------------------------------------------------


def test_the_trained_context_stands_in_for_an_original_one() -> None:
    assert read(rope_scaling=section("dynamic")).original_context == 4096
    kept = section("yarn")
    del kept["original_max_position_embeddings"]
    assert read(rope_scaling=kept).original_context == 4096
    assert read(rope_scaling=section("yarn")).original_context == 32768


@given(kind=KINDS, key=st.sampled_from(["alpha", "short_factor", "mscales", "rope_Theta", "Factor"]))
def test_a_key_that_its_kind_does_not_read_is_refused_by_name(kind: str, key: str) -> None:
    said = refusal(rope_scaling=section(kind, **{key: 1.0}))
    assert repr(key) in said and f"type {kind!r}" in said
    assert read(rope_scaling=section(kind, **{key: None})).kind == kind, "null is as good as absent"


def test_keys_of_another_kind_are_refused_too() -> None:
    assert "'low_freq_factor'" in refusal(rope_scaling=section("yarn", low_freq_factor=1.0))
    assert "'beta_fast'" in refusal(rope_scaling=section("llama3", beta_fast=32.0))
    assert "'factor'" in refusal(rope_scaling=section("default", factor=2.0))


def test_two_names_of_the_kind_must_agree() -> None:
    assert "the same as rope_type, which is 'yarn'" in refusal(rope_scaling=section("yarn", type="linear"))
    assert read(rope_scaling=section("yarn", type="yarn")).kind == "yarn"


def test_a_section_without_a_kind_is_no_section() -> None:
    assert "rope_type" in refusal(rope_scaling={"factor": 2.0})


@pytest.mark.parametrize("kind", ["longrope", "su", "mrope", "YARN", "", "\x1b[31m"])
def test_a_kind_that_we_cannot_run_is_named_with_those_that_we_can(kind: str) -> None:
    said = refusal(rope_scaling={"rope_type": kind, "factor": 2.0})
    assert "we run default, linear, dynamic, llama3, yarn." in said and "\x1b" not in said


@pytest.mark.parametrize("low", [4.0, 5.0])
def test_a_blend_needs_two_different_ends(low: float) -> None:
    said = refusal(rope_scaling=section("llama3", low_freq_factor=low))
    assert f"above low_freq_factor, which is {low:g}" in said


def test_a_ramp_that_is_not_cut_to_whole_pairs_is_refused() -> None:
    assert "true, which is all we run" in refusal(rope_scaling=section("yarn", truncate=False))
    assert read(rope_scaling=section("yarn", truncate=True)) == read(rope_scaling=section("yarn"))


# -- YaRN's factor ------------------------------------------------------------------------------------------


@given(factor=st.floats(1.0, 1e6), scale=st.floats(1e-3, 10.0))
def test_the_magnitude_grows_with_the_logarithm_of_the_factor(factor: float, scale: float) -> None:
    assert yarn_magnitude(1.0, scale) == 1.0
    assert yarn_magnitude(factor, scale) == pytest.approx(1 + scale * (yarn_magnitude(factor) - 1))
    assert yarn_magnitude(factor, scale) <= yarn_magnitude(factor * 2, scale)


@given(scale=st.floats(1e-3, 1e3))
def test_equal_scales_cancel(scale: float) -> None:
    assert read(rope_scaling=section("yarn", mscale=scale, mscale_all_dim=scale)).attention_factor == 1.0


def test_what_is_given_goes_before_what_is_worked_out() -> None:
    keys = {"mscale": 1.0, "mscale_all_dim": 0.5}
    assert read(rope_scaling=section("yarn", **keys)).attention_factor == pytest.approx(
        (0.1 * math.log(4) + 1) / (0.05 * math.log(4) + 1)
    )
    assert read(rope_scaling=section("yarn", attention_factor=0.5, **keys)).attention_factor == 0.5


@pytest.mark.parametrize(
    "keys", [{}, {"mscale": 1.0}, {"mscale_all_dim": 1.0}, {"mscale": 0, "mscale_all_dim": 1.0}]
)
def test_one_scale_alone_settles_nothing(keys: dict[str, Any]) -> None:
    assert read(rope_scaling=section("yarn", **keys)).attention_factor is None


# -- the context --------------------------------------------------------------------------------------------


@given(kind=KINDS, trained=st.integers(1, MAX_CONTEXT), factor=st.floats(1.0, 1e6))
def test_stretching_never_shortens_a_context(kind: str, trained: int, factor: float) -> None:
    rope = RopeSpec(kind, factor=factor, original_context=min(trained, 4096))  # type: ignore[arg-type]
    found = stretched_context(rope, trained)
    assert trained <= found <= MAX_CONTEXT
    if kind in ("default", "dynamic", "llama3"):
        assert found == trained


def test_yarn_stretches_the_context_it_was_first_trained_for() -> None:
    rope = read(rope_scaling=section("yarn"))
    assert stretched_context(rope, 32768) == 131072
    assert stretched_context(rope, 200_000) == 200_000
    assert stretched_context(RopeSpec("yarn", factor=4.0), 1000) == 4000
    assert stretched_context(RopeSpec("linear", factor=2.5), 1001) == 2502
