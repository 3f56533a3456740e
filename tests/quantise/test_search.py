"""The search finds scales and ranges that lose less on the inputs that were seen."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine.quantise.rounding import round_matrix
from llmrs_cli.engine.quantise.search import Inputs, averaged, best_clip, best_scales, loss_of, scaled_gram

Values = NDArray[np.float32]
GROUP, K, N = 32, 96, 40


def outlying(seed: int, tokens: int = 400) -> Values:
    """(T, K) inputs of which a few channels are much larger than the rest."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, K)).astype(np.float32)
    x[:, [3, 40, 77]] *= 30
    return x


def weights(seed: int) -> Values:
    return np.random.default_rng(seed).standard_normal((N, K)).astype(np.float32)


def seen(*parts: Values) -> Inputs:
    inputs = Inputs(K, GROUP)
    for x in parts:
        inputs.add(x)
    return inputs


def true_loss(weight: Values, x: Values, scales: Values, clip: Values | None = None) -> float:
    """The energy of the outputs' error, by the product itself."""
    rounded = round_matrix(weight * scales, GROUP, clip).dequantise() / scales
    return float((((rounded - weight) @ x.T) ** 2).sum())


def test_statistics_do_not_depend_on_how_tokens_are_split() -> None:
    x = outlying(0)
    whole, parts = seen(x), seen(x[:1], x[1:170], x[170:])
    assert whole.tokens == parts.tokens == len(x)
    np.testing.assert_allclose(whole.mean, np.abs(x).mean(0), rtol=1e-5)
    np.testing.assert_allclose(whole.gram, parts.gram, rtol=1e-3, atol=1e-2)
    np.testing.assert_allclose(whole.gram[1], x[:, 32:64].T @ x[:, 32:64], rtol=1e-3, atol=1e-2)


def test_the_loss_is_the_energy_of_the_error_but_for_chance() -> None:
    x, weight = outlying(1), weights(2)
    ones = np.ones(K, np.float32)
    assert loss_of(weight, seen(x), ones) == pytest.approx(true_loss(weight, x, ones), rel=0.1)


def test_scales_protect_channels_with_large_activations() -> None:
    x, weight = outlying(3), weights(4)
    scales = best_scales([weight], seen(x))
    assert scales[[3, 40, 77]].min() > 2 * np.delete(scales, [3, 40, 77]).max()
    ones = np.ones(K, np.float32)
    assert true_loss(weight, x, scales) < 0.5 * true_loss(weight, x, ones)


def test_equal_channels_need_no_scales() -> None:
    x = np.ones((10, K), np.float32)
    np.testing.assert_allclose(best_scales([weights(5)], seen(x)), 1, rtol=1e-5)


def test_channels_that_are_always_zero_are_harmless() -> None:
    x = outlying(6)
    x[:, 10:20] = 0
    scales = best_scales([weights(7)], seen(x))
    assert np.isfinite(scales).all() and (scales > 0).all()


def test_heads_that_one_key_head_feeds_share_their_scales() -> None:
    """96 inputs as 2 key heads with 3 query heads of 16 each."""
    scales = best_scales([weights(8)], seen(outlying(9)), shared=(2, 3)).reshape(2, 3, 16)
    np.testing.assert_array_equal(scales[:, :1].repeat(3, axis=1), scales)
    values = np.arange(96, dtype=np.float32)
    assert averaged(values, (2, 3))[:3].tolist() == [16.0, 17.0, 18.0]


def test_clips_lose_less_on_every_row() -> None:
    x, weight = outlying(10), weights(11)
    weight[:, 5] *= 8  # an outlier that is hardly ever needed
    x[:, 5] *= 0.01
    ones = np.ones(K, np.float32)
    clip = best_clip(weight, seen(x), ones)
    assert clip.shape == (N, K // GROUP)
    assert 0.5 <= clip.min() < 1 and clip.max() <= 1
    assert true_loss(weight, x, ones, clip) < 0.7 * true_loss(weight, x, ones)


def test_the_gram_of_scaled_inputs_is_that_of_inputs_that_were_scaled() -> None:
    x = outlying(12)
    scales = np.linspace(0.5, 2, K, dtype=np.float32)
    np.testing.assert_allclose(scaled_gram(seen(x), scales), seen(x / scales).gram, rtol=1e-3, atol=1e-2)
