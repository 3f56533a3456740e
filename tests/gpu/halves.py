"""16-bit values as bit patterns, on the host and on the GPU, and the error measure of the GPU tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import bf16_to_f32, f32_to_bf16

cp = pytest.importorskip("cupy", reason="CuPy is not installed")
Floats = NDArray[np.float32]
TYPES = [True, False]
"""bf16, then f16."""


def halves(values: NDArray[Any], bf16: bool) -> tuple[Any, NDArray[np.float64]]:
    """(bits on the GPU, what they stand for in float64)."""
    wide = np.asarray(values, np.float32)
    bits = f32_to_bf16(wide) if bf16 else wide.astype(np.float16).view(np.uint16)
    return cp.asarray(bits), widened(bits, bf16)


def widened(bits: Any, bf16: bool) -> NDArray[np.float64]:
    """Bit patterns (host or GPU) in float64."""
    host = cp.asnumpy(bits)
    return (bf16_to_f32(host) if bf16 else host.view(np.float16)).astype(np.float64)


def error(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    """‖found − wanted‖ / ‖wanted‖; a NaN never passes a comparison with it."""
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def rounding(bf16: bool) -> float:
    """Bound of the error of one rounding to the 16-bit type, with room for a second."""
    return 4e-3 if bf16 else 5e-4


def in_turns(gate_up: NDArray[Any]) -> NDArray[Any]:
    """(2F, …) gate over up → 8 rows of gate, 8 of up, and so on."""
    f = len(gate_up) // 2
    paired = gate_up.reshape(2, f // 8, 8, *gate_up.shape[1:]).swapaxes(0, 1)
    return np.ascontiguousarray(paired.reshape(gate_up.shape))
