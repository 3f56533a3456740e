"""Cosines and sines of rotary positions (Su et al., RoFormer) and the ways to stretch them.

Frequencies are those of transformers, in float64 rounded once to float32; an angle is the float32 product
of position and frequency, since that is what the models were trained and are judged with. Attention
sharpening of YaRN is folded into the tables. Applying them is the backend's.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.model.rope_config import RopeSpec, yarn_magnitude
from llmrs_cli.engine.model.spec import ModelSpec

Doubles = NDArray[np.float64]
Table = NDArray[np.float32]

_CHUNK = 4096
"""Positions whose float64 angles are held at once."""


def rope_tables(spec: ModelSpec, length: int) -> tuple[Table, Table]:
    """Cosines and sines (P, D/2) float32 of positions 0 … P - 1, with P = `length`.

    `dynamic` scaling is fixed here for a context of `length` tokens, so that cached keys keep their base;
    up to the trained context it is the plain rotation.
    """
    frequencies = inverse_frequencies(spec.rope, spec.head_dim, length).astype(np.float32)
    scale = attention_scale(spec.rope)
    cos, sin = (np.empty((length, spec.head_dim // 2), np.float32) for _ in range(2))
    for first in range(0, length, _CHUNK):
        some = slice(first, min(first + _CHUNK, length))
        angles = np.arange(some.start, some.stop, dtype=np.float32)[:, None] * frequencies
        wide = angles.astype(np.float64)
        cos[some], sin[some] = np.cos(wide) * scale, np.sin(wide) * scale
    return cos, sin


def inverse_frequencies(rope: RopeSpec, dim: int, length: int = 0) -> Doubles:
    """Radians per position of each pair of components: (D/2,) float64."""
    if rope.kind == "dynamic":
        return _plain(_stretched_theta(rope, dim, length), dim)
    plain = _plain(rope.theta, dim)
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, plain)
    if rope.kind == "yarn":
        return _yarn(rope, plain, dim)
    return plain


def attention_scale(rope: RopeSpec) -> float:
    """Factor on cosines and sines."""
    if rope.kind != "yarn":
        return 1.0
    return rope.attention_factor if rope.attention_factor is not None else yarn_magnitude(rope.factor)


def _plain(theta: float, dim: int) -> Doubles:
    exponents = np.arange(0, dim, 2, dtype=np.float64) / dim
    return np.asarray(theta**-exponents, np.float64)


def _stretched_theta(rope: RopeSpec, dim: int, length: int) -> float:
    """NTK-aware base for `length` positions (dynamic scaling); the trained base up to the trained context."""
    trained = rope.original_context or length
    if length <= trained:
        return rope.theta
    growth = rope.factor * length / trained - (rope.factor - 1)
    return float(rope.theta * growth ** (dim / (dim - 2)))


def _llama3(rope: RopeSpec, plain: Doubles) -> Doubles:
    """Llama 3.1: long wavelengths divided by the factor, short ones kept, a linear blend between."""
    assert rope.original_context is not None
    turns = rope.original_context * plain / (2 * math.pi)
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep = np.clip(blend, 0.0, 1.0)
    return keep * plain + (1 - keep) * plain / rope.factor


def _yarn(rope: RopeSpec, plain: Doubles, dim: int) -> Doubles:
    """YaRN (Peng et al., 2023): a ramp over pairs between `beta_fast` and `beta_slow` turns of the context."""
    assert rope.original_context is not None

    def pair_with(turns: float) -> float:
        assert rope.original_context is not None
        wavelength = rope.original_context / (turns * 2 * math.pi)
        return dim * math.log(wavelength) / (2 * math.log(rope.theta))

    low = max(math.floor(pair_with(rope.beta_fast)), 0)
    high = min(math.ceil(pair_with(rope.beta_slow)), dim - 1)
    ramp = (np.arange(dim // 2) - low) / max(high - low, 1e-3)
    stretch = np.clip(ramp, 0.0, 1.0)
    return plain * (1 - stretch) + plain / rope.factor * stretch
