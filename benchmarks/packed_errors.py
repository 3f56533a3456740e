"""What exact codes are worth: ‖Δy‖ / ‖y‖ of 4-bit products whose weights are rounded in one way or another.

NumPy alone. `Packed` is a matrix as its file means it; each of `ROUNDED` is what a kernel multiplies that feeds the
tensor cores with finished 16-bit weights. Sums are float64, so what is seen is the weights' rounding alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import bf16_to_f32, f32_to_bf16

Wide = NDArray[np.float64]


def narrow(values: NDArray[Any], bf16: bool) -> Wide:
    """To the nearest number of the 16-bit type."""
    single = np.asarray(values, np.float32)
    return np.asarray(bf16_to_f32(f32_to_bf16(single)) if bf16 else single.astype(np.float16), np.float64)


@dataclass(frozen=True, slots=True)
class Packed:
    """W = steps · scale, group by group."""

    steps: Wide
    """(N, K) code minus zero"""
    scales: Wide
    """(N, K / G) float16 values"""

    def values(self) -> Wide:
        """W (N, K)."""
        return self._times(self.scales)

    def rounded(self, bf16: bool) -> Wide:
        """Each weight rounded once: as our slabs for cuBLASLt hold them."""
        return narrow(self.values(), bf16)

    def rounded_twice(self, bf16: bool) -> Wide:
        """Scales in the type of the activations, then their products with codes: the way of Marlin's kernel, and of
        checkpoints whose scales are cast with all else."""
        return narrow(self._times(narrow(self.scales, bf16)), bf16)

    def _times(self, scales: Wide) -> Wide:
        group = self.steps.shape[1] // scales.shape[1]
        return self.steps * np.repeat(scales, group, axis=1)


ROUNDED: dict[str, Callable[[Packed, bool], Wide]] = {
    "code_times_scale_rounded": Packed.rounded,
    "scale_rounded_before": Packed.rounded_twice,
}


def error(found: NDArray[Any], wanted: Wide) -> float:
    """‖found − wanted‖ / ‖wanted‖."""
    return math.sqrt(float(((found - wanted) ** 2).sum() / (wanted**2).sum()))


def rounding_errors(weight: Packed, x: Wide, bf16: bool) -> dict[str, float]:
    """By kind of rounding, of products with (M, K) activations that are 16-bit already."""
    wanted = x @ weight.values().T
    return {name: error(x @ round_(weight, bf16).T, wanted) for name, round_ in ROUNDED.items()}
