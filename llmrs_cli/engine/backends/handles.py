"""What a loaded model is to the decoder: geometry, and weights as opaque handles of one backend.

`Backend.prepare_*` makes the handles while loading; only the same backend's ops read them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol


class Linear(Protocol):
    """A prepared linear layer y = x · Wᵀ (+ bias); also an embedding table, whose rows are W's."""

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K): outputs, inputs."""

    @property
    def note(self) -> str:
        """How it is stored and which kernels serve it, in a few words for `llmrs doctor`."""


Vector = Any
"""(N,) float32 values in the backend's memory."""
RopeTable = Any
"""(P, D) cosines and sines of each position in the backend's memory."""
KvLayer = Any
"""Key and value blocks of one layer in the backend's memory."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes that attention ops need beside their arrays."""

    heads: int
    """Hq"""
    kv_heads: int
    """Hkv, a divisor of Hq"""
    head_dim: int
    """D"""
    eps: float
    """Of every RMS norm in the model."""
    window: int | None = None
    """Sliding window in tokens: a query sees itself and window - 1 tokens before it."""

    @property
    def scale(self) -> float:
        """Factor on q·k."""
        return math.pow(self.head_dim, -0.5)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer."""

    geometry: Geometry
    attention_norm: Vector
    """(C,)"""
    qkv: Linear
    """C → (Hq + 2·Hkv)·D: queries, then keys, then values"""
    q_norm: Vector | None
    """(D,), on each query head before the rotation (Qwen3)"""
    k_norm: Vector | None
    o: Linear
    """Hq·D → C"""
    mlp_norm: Vector
    """(C,)"""
    gate_up: Linear
    """C → 2·F: gate, then up"""
    down: Linear
    """F → C"""


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """A whole decoder."""

    embedding: Linear
    """(V, C) as a table of rows"""
    rope: RopeTable
    layers: tuple[LayerWeights, ...]
    norm: Vector
    """(C,)"""
    head: Linear
    """C → V; the same handle as `embedding` where the two are tied"""
    eps: float
