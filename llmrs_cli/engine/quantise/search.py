"""Which scales and ranges lose least, judged by what the inputs of a layer really are.

Activation-aware quantisation: an input channel with large activations is multiplied into the weights and
divided out of what feeds it, so that its weights are rounded more finely. The exponent is searched on a grid.
Then each group's range is shrunk as far as that helps its row. Source: Lin et al., AWQ, MLSys 2024.

The loss of a change D (N, K) of the weights is the energy of X · Dᵀ. Rounding errors of different groups have
nothing to do with one another, so it is taken as the sum over groups of D_g · H_g · D_gᵀ with H_g = X_gᵀ · X_g:
that needs no tokens, only G × G numbers a group, which any number of tokens were summed into.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.quantise.rounding import Values, residue, slabs, spans

EXPONENTS = tuple(step / 20 for step in range(20))
"""Of the mean activation; 0 changes nothing."""
CLIPS = tuple(np.float32(1 - step / 20) for step in range(1, 11))
"""Of a group's range, beside all of it."""
_SMALLEST = 1e-4
"""Of a mean activation: a dead channel must not be scaled to nothing."""


@dataclass
class Inputs:
    """What is known of the inputs of some linear layers, summed over tokens."""

    columns: int
    group: int
    tokens: int = 0
    total: NDArray[np.float64] = field(init=False)
    """(K,) sum of |x|"""
    gram: Values = field(init=False)
    """(K/G, G, G) sum of x · xᵀ within each group"""

    def __post_init__(self) -> None:
        groups = self.columns // self.group
        self.total = np.zeros(self.columns)
        self.gram = np.zeros((groups, self.group, self.group), np.float32)

    def add(self, x: Values) -> None:
        """Count (T, K) inputs."""
        self.tokens += len(x)
        self.total += np.abs(x).sum(axis=0, dtype=np.float64)
        split = np.ascontiguousarray(x.reshape(len(x), -1, self.group).transpose(1, 2, 0))
        self.gram += split @ split.transpose(0, 2, 1)

    @property
    def mean(self) -> Values:
        """(K,) mean |x|."""
        return (self.total / max(self.tokens, 1)).astype(np.float32)


def best_scales(weights: Sequence[Values], inputs: Inputs, shared: tuple[int, int] | None = None) -> Values:
    """(K,) factors for the columns of `weights`, which all read `inputs`.

    `shared` is (Hkv, Hq/Hkv) where inputs are heads and each key head feeds several in a row, whose factors
    must then be equal.
    """
    mean = np.maximum(inputs.mean, np.float32(_SMALLEST))
    if shared is not None:
        mean = averaged(mean, shared)
    best, least = np.ones_like(mean), np.inf
    for exponent in EXPONENTS:
        scales = mean ** np.float32(exponent)
        scales /= np.sqrt(scales.max() * scales.min())
        loss = sum(loss_of(weight, inputs, scales) for weight in weights)
        if loss < least:
            best, least = scales, loss
    return best


def averaged(values: Values, shared: tuple[int, int]) -> Values:
    """(Hq·D,) values, each replaced by the mean over the heads that one key head feeds."""
    heads = values.reshape(*shared, -1)
    mean = heads.mean(axis=1, keepdims=True, dtype=np.float32)
    return np.broadcast_to(mean, heads.shape).reshape(-1)


def loss_of(weight: Values, inputs: Inputs, scales: Values) -> float:
    """Energy of the error of x · Wᵀ if W · scales is rounded and x / scales goes in."""
    gram = scaled_gram(inputs, scales)
    total = 0.0
    for rows in slabs(*weight.shape):
        groups = _grouped(weight[rows] * scales, inputs.group)
        change = residue(groups, spans(groups))
        total += float(_energy(change, gram).sum(dtype=np.float64))
    return total


def best_clip(weight: Values, inputs: Inputs, scales: Values) -> Values:
    """(N, K/G) factors for the ranges of `weight`, already multiplied by `scales`."""
    gram = scaled_gram(inputs, scales)
    best = np.ones((len(weight), len(gram)), np.float32)
    for rows in slabs(*weight.shape):
        groups = _grouped(weight[rows], inputs.group)
        span = spans(groups)
        least = _energy(residue(groups, span), gram)
        for clip in CLIPS:
            loss = _energy(residue(groups, span, clip), gram)
            better = loss < least
            best[rows][better] = clip
            np.copyto(least, loss, where=better)
    return best


def scaled_gram(inputs: Inputs, scales: Values) -> Values:
    """The Gram matrices of x / scales."""
    inverse = (np.float32(1) / scales).reshape(-1, inputs.group)
    gram: Values = inputs.gram * inverse[:, :, None] * inverse[:, None, :]
    return gram


def _grouped(weight: Values, group: int) -> Values:
    return weight.reshape(len(weight), -1, group)


def _energy(change: Values, gram: Values) -> Values:
    """(n, K/G): D · H · Dᵀ of each row and group."""
    moved = change.transpose(1, 0, 2)
    energy: Values = np.einsum("gnk,gnk->ng", moved @ gram, moved)
    return energy
