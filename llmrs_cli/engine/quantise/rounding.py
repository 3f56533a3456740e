"""Weights to unsigned 4-bit codes, a scale and a zero for every group of a row.

Letters: N outputs, K inputs, G inputs of a group. Values come as (N, K/G, G) float32. A group's scale and zero
span its smallest and largest value (and 0), shrunk by a factor where a few outliers are not worth the width of
the steps. Scales are rounded to float16 before codes are chosen, so codes fit the scales that are stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float32]
Spans = tuple[Values, Values]
LEVELS = 15
"""The largest code."""
SLAB = 1 << 16
"""Values worked on at a time, so that every pass over them stays in the cache."""


@dataclass(frozen=True, slots=True)
class Rounded:
    """A matrix in 4 bits."""

    codes: NDArray[np.uint8]
    """(N, K), one a byte"""
    zeros: NDArray[np.uint8]
    """(N, K/G)"""
    scales: NDArray[np.float16]
    """(N, K/G)"""

    def dequantise(self) -> Values:
        """(N, K) float32."""
        n, groups = self.scales.shape
        codes = self.codes.reshape(n, groups, -1).astype(np.float32)
        wide = (codes - self.zeros[..., None]) * self.scales[..., None].astype(np.float32)
        return wide.reshape(n, -1).astype(np.float32)


def round_matrix(weight: Values, group: int, clip: Values | None = None) -> Rounded:
    """(N, K) values to the nearest codes; `clip` (N, K/G) shrinks each group's range, None: not at all."""
    n, k = weight.shape
    codes = np.empty((n, k), np.uint8)
    zeros = np.empty((n, k // group), np.uint8)
    scales = np.empty((n, k // group), np.float16)
    for rows in slabs(n, k):
        groups = weight[rows].reshape(-1, k // group, group)
        scale, zero = steps(spans(groups), np.float32(1) if clip is None else clip[rows])
        codes[rows] = nearest(groups, scale, zero).reshape(-1, k)
        zeros[rows], scales[rows] = zero, scale
    return Rounded(codes, zeros, scales)


def slabs(rows: int, columns: int) -> list[slice]:
    """Runs of rows of about SLAB values."""
    height = max(1, SLAB // columns)
    return [slice(first, min(first + height, rows)) for first in range(0, rows, height)]


def spans(groups: Values) -> Spans:
    """(n, K/G): the largest value of each group or 0, and the smallest or 0."""
    return _fold(np.maximum, groups), _fold(np.minimum, groups)


def _fold(best: np.ufunc, groups: Values) -> Values:
    """`best` of 0 and each group, by halves: NumPy's own reduction of a short axis takes several times as long."""
    while (width := groups.shape[-1]) > 1:
        half = width // 2
        folded = best(groups[..., :half], groups[..., half : 2 * half])
        if width % 2:
            folded[..., 0] = best(folded[..., 0], groups[..., -1])
        groups = folded
    found: Values = best(groups[..., 0], np.float32(0))
    return found


def steps(span: Spans, clip: Values | np.float32) -> tuple[Values, Values]:
    """(n, K/G) scales, each exact in float16, and zeros, whole numbers 0 … 15."""
    high, low = span[0] * clip, span[1] * clip
    scales = ((high - low) / np.float32(LEVELS)).astype(np.float16).astype(np.float32)
    scales[scales == 0] = 1
    return scales, np.clip(np.rint(-low / scales), 0, LEVELS)


def nearest(groups: Values, scales: Values, zeros: Values) -> Values:
    """(n, K/G, G) codes, whole numbers 0 … 15."""
    codes = groups / scales[..., None]
    np.rint(codes, out=codes)
    codes += zeros[..., None]
    return np.clip(codes, 0, LEVELS, out=codes)


def residue(groups: Values, span: Spans, clip: np.float32 | int = 1) -> Values:
    """(n, K/G, G): what rounding changes; `span` is that of the groups."""
    scales, zeros = steps(span, np.float32(clip))
    found = nearest(groups, scales, zeros)
    found -= zeros[..., None]
    found *= scales[..., None]
    found -= groups
    return found
