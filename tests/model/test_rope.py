"""Rotary tables against numbers worked out from the papers, and against what must hold for any model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine.model.rope import attention_scale, inverse_frequencies, rope_tables
from llmrs_cli.engine.model.spec import ModelSpec, RopeSpec, from_config
from tests.model.configs import config

QWEN_YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def with_rope(head_dim: int = 16, **keys: Any) -> ModelSpec:
    return from_config(config(head_dim=head_dim, **keys))


def test_plain_positions_turn_by_powers_of_theta() -> None:
    cos, sin = rope_tables(with_rope(4), 3)
    assert cos.shape == sin.shape == (3, 2) and cos.dtype == sin.dtype == np.float32
    expected = [[1.0, 1.0], [math.cos(1.0), math.cos(0.01)], [math.cos(2.0), math.cos(0.02)]]
    np.testing.assert_allclose(cos, expected, rtol=1e-6)
    np.testing.assert_allclose(sin[1], [math.sin(1.0), math.sin(0.01)], rtol=1e-6)


def test_linear_scaling_divides_every_angle() -> None:
    cos, sin = rope_tables(with_rope(rope_scaling={"type": "linear", "factor": 4.0}), 9)
    plain_cos, plain_sin = rope_tables(with_rope(), 3)
    np.testing.assert_allclose(cos[::4], plain_cos, atol=1e-6)
    np.testing.assert_allclose(sin[::4], plain_sin, atol=1e-6)


def test_yarn_of_qwen_ramps_between_pairs_23_and_40() -> None:
    spec = with_rope(128, rope_theta=1e6, max_position_embeddings=32768, rope_scaling=QWEN_YARN)
    stretched = inverse_frequencies(spec.rope, 128)
    ratio = stretched / inverse_frequencies(RopeSpec(theta=1e6), 128)
    np.testing.assert_array_equal(ratio[:24], 1.0)
    np.testing.assert_allclose(ratio[40:], 0.25, rtol=1e-12)
    np.testing.assert_allclose(ratio[[24, 32, 39]], [0.955882, 0.602941, 0.294118], atol=1e-6)
    np.testing.assert_allclose(stretched[[24, 32]], [5.375321e-03, 6.029412e-04], rtol=1e-6)


def test_yarn_scales_cosines_and_sines_from_the_first_position_on() -> None:
    cos, sin = rope_tables(with_rope(128, rope_theta=1e6, rope_scaling=QWEN_YARN), 2)
    np.testing.assert_allclose(cos[0], 1.138629, rtol=1e-6)
    np.testing.assert_array_equal(sin[0], 0.0)
    np.testing.assert_allclose(np.hypot(cos, sin), 1.138629, rtol=1e-6)


def test_an_attention_factor_of_the_configuration_stands() -> None:
    assert attention_scale(RopeSpec("yarn", factor=4.0, original_context=64, attention_factor=0.75)) == 0.75
    assert attention_scale(RopeSpec("llama3", factor=4.0, original_context=64)) == 1.0


def test_llama3_keeps_short_waves_and_divides_long_ones() -> None:
    """Llama 3.1 8B: pairs with more than 4 turns in 8,192 positions stay, with under one are divided by 8."""
    rope = RopeSpec("llama3", 500000.0, 8.0, 8192, 1.0, 4.0)
    plain = inverse_frequencies(RopeSpec(theta=500000.0), 128)
    ratio = inverse_frequencies(rope, 128) / plain
    turns = 8192 * plain / (2 * math.pi)
    np.testing.assert_allclose(ratio[turns >= 4], 1.0)
    np.testing.assert_allclose(ratio[turns <= 1], 1 / 8)
    # Pair 30: 500000^(60/128) is 469.237 positions a radian, 2.778548 turns, 0.592849 of the way to "keep".
    assert ratio[30] == pytest.approx(0.592849 + 0.407151 / 8, abs=1e-5)


def test_dynamic_scaling_is_plain_up_to_the_trained_context() -> None:
    spec = with_rope(rope_scaling={"type": "dynamic", "factor": 2.0})
    np.testing.assert_array_equal(rope_tables(spec, 128)[0], rope_tables(with_rope(), 128)[0])


def test_dynamic_scaling_is_fixed_for_a_longer_context() -> None:
    """Base 10000 · (2 · 256/128 - 1)^(16/14) for twice the trained context, at every position."""
    rope = RopeSpec("dynamic", 10000.0, 2.0, 128)
    base = 10000.0 * 3.0 ** (16 / 14)
    np.testing.assert_allclose(inverse_frequencies(rope, 16, 256), base ** -(np.arange(8) / 8), rtol=1e-12)


def test_angles_are_float32_products_as_in_training() -> None:
    spec = with_rope(128, rope_theta=1e6)
    frequency = np.float32(1e6 ** (-2 / 128))
    angle = float(np.float32(100_003) * frequency)
    cos, _ = rope_tables(spec, 100_004)
    assert cos[-1, 1] == np.float32(math.cos(angle))


@given(
    kind=st.sampled_from(["default", "linear", "llama3", "yarn", "dynamic"]),
    dim=st.integers(2, 128).map(lambda half: 2 * half),
    theta=st.floats(2.0, 1e8),
    factor=st.floats(1.0, 64.0),
    context=st.integers(16, 1 << 17),
    length=st.integers(1, 40),
)
def test_every_table_is_finite_and_no_frequency_grows(
    kind: str, dim: int, theta: float, factor: float, context: int, length: int
) -> None:
    rope = RopeSpec(kind, theta, factor, context)  # type: ignore[arg-type]
    plain = inverse_frequencies(RopeSpec(theta=theta), dim)
    found = inverse_frequencies(rope, dim, length)
    assert np.isfinite(found).all()
    # Dynamic scaling slows the longest wave by the growth of the context, the others by less.
    most = max(factor * length / context - (factor - 1), 1.0) if kind == "dynamic" else factor
    assert (found <= plain * (1 + 1e-9)).all() and (found >= plain / most * (1 - 1e-9)).all()
