"""What the fused ops of the CUDA backend give, and how a comparison reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cupy as cp
import numpy as np

from llmrs_cli.engine.arrays import Floats
from llmrs_cli.engine.backends.base import Hidden
from llmrs_cli.engine.backends.handles import KvLayer, Vector
from llmrs_cli.engine.weights.packed import bf16_to_f32
from llmrs_cli.kernels import attend_few
from llmrs_cli.kernels.norm_ahead import Ahead
from llmrs_cli.kernels.silu_mul import headroom

LARGEST_BITS = 0x7BFF
"""Of float16: 65,504. Infinities and NaN are above."""
LARGEST = 65504.0


@dataclass(frozen=True, slots=True)
class PagedKv:
    """Keys and values of one layer."""

    keys: Any
    """(NB, Hkv, 64, D) 16-bit"""
    values: Any
    """(NB, Hkv, 64, D) 16-bit"""


@dataclass(slots=True)
class CudaHidden(Hidden):
    """The residual, and what the last sum has left for the norm that follows."""

    ahead: Ahead | None = None


@dataclass(frozen=True, slots=True)
class Scaled:
    """Activations that are stored times `headroom`."""

    values: Any
    """(T, F) 16-bit"""
    headroom: float


@dataclass(frozen=True, slots=True)
class Projected:
    """The qkv projection of a step whose decode attention turns it into queries, keys and values."""

    qkv: Any
    """(T, (Hq + 2·Hkv)·D) 16-bit"""
    rotation: attend_few.Rotation
    q: Any = None
    """(T, Hq, D) 16-bit queries of the prompts beside them"""


@dataclass(frozen=True, slots=True)
class CudaLooks:
    """Results in the GPU's memory, 16-bit ones as bit patterns. A step's arrays may hold more tokens than it has."""

    bf16: bool

    def numbers(self, result: Any, tokens: int) -> Floats | None:
        if isinstance(result, Projected):
            return None
        values, factor = (result.values, result.headroom) if isinstance(result, Scaled) else (result, 1.0)
        host = cp.asnumpy(values[:tokens])
        if host.dtype == np.uint16:
            host = bf16_to_f32(host) if self.bf16 else host.view(np.float16)
        return np.array(host, np.float32) / np.float32(factor)

    def saturated(self, result: Any, tokens: int) -> int:
        bits = result.values if isinstance(result, Scaled) else result
        bits = bits.qkv if isinstance(bits, Projected) else bits
        return self._count(bits[:tokens])

    def saturated_kv(self, kv: KvLayer) -> int:
        assert isinstance(kv, PagedKv)
        return self._count(kv.keys) + self._count(kv.values)

    def saturated_norm(self, residual: Any, norm: Vector, tokens: int) -> int:
        if self.bf16:
            return 0
        product = cp.asnumpy(residual[:tokens]) * cp.asnumpy(norm)
        return int(np.count_nonzero(np.abs(product) * headroom(self.bf16) > LARGEST))

    def _count(self, bits: Any) -> int:
        """On the host, which need compile nothing for it; bfloat16 reaches as far as float32."""
        return 0 if self.bf16 else int(np.count_nonzero((cp.asnumpy(bits) & 0x7FFF) >= LARGEST_BITS))
