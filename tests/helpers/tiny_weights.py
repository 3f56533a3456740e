"""A random decoder straight in a backend's memory: no files, no loader, milliseconds.

The canonical arrays are a function of (shape, seed), so two backends given the same one hold the same
model. For checkpoints in the real on-disk format use `tiny_model`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmrs_cli.engine.backends.base import Backend
from llmrs_cli.engine.backends.handles import Geometry, LayerWeights, Linear, ModelWeights, Vector
from llmrs_cli.engine.weights.packed import Dense, Weight
from tests.helpers.canonical import dense, packed4, permuted4


@dataclass(frozen=True)
class TinyShape:
    """What to make; small enough that a step takes a millisecond on the reference."""

    hidden: int = 32
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    ffn: int = 48
    vocab: int = 64
    positions: int = 256
    window: int | None = None
    qk_norm: bool = False
    qkv_bias: bool = True
    tied: bool = False
    packed: bool = False
    """4-bit linear layers, groups of 16"""
    permuted: bool = False
    """... whose columns are sorted by group"""
    seed: int = 0


def tiny_weights(backend: Backend, shape: TinyShape | None = None) -> ModelWeights:
    """Build the decoder with `backend.prepare_*`."""
    shape = TinyShape() if shape is None else shape
    rng = np.random.default_rng(shape.seed)
    embedding = backend.prepare_linear([dense(rng, shape.vocab, shape.hidden)], [None], "embedding")
    layers = tuple(_layer(backend, shape, rng) for _ in range(shape.layers))
    head = [dense(rng, shape.vocab, shape.hidden, 2 / shape.hidden**0.5)]
    return ModelWeights(
        embedding=embedding,
        rope=backend.prepare_rope(*_rope(shape)),
        layers=layers,
        norm=_norm(backend, rng, shape.hidden),
        head=embedding if shape.tied else backend.prepare_linear(head, [None], "head"),
        eps=1e-6,
    )


def _layer(backend: Backend, shape: TinyShape, rng: np.random.Generator) -> LayerWeights:
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

    def linear(outputs: tuple[int, ...], inputs: int, bias: bool = False) -> Linear:
        parts: list[Weight] = [_matrix(rng, n, inputs, shape) for n in outputs]
        values = [Dense((rng.standard_normal(n) * 0.5).astype(np.float32)) if bias else None for n in outputs]
        return backend.prepare_linear(parts, values, "layer")

    return LayerWeights(
        geometry=Geometry(shape.heads, shape.kv_heads, shape.head_dim, 1e-6, shape.window),
        attention_norm=_norm(backend, rng, shape.hidden),
        qkv=linear((query, key, key), shape.hidden, shape.qkv_bias),
        q_norm=_norm(backend, rng, shape.head_dim) if shape.qk_norm else None,
        k_norm=_norm(backend, rng, shape.head_dim) if shape.qk_norm else None,
        o=linear((shape.hidden,), query),
        mlp_norm=_norm(backend, rng, shape.hidden),
        gate_up=linear((shape.ffn, shape.ffn), shape.hidden),
        down=linear((shape.hidden,), shape.ffn),
    )


def _matrix(rng: np.random.Generator, rows: int, columns: int, shape: TinyShape) -> Weight:
    if shape.permuted:
        return permuted4(rng, rows, columns, 16)
    return packed4(rng, rows, columns, 16) if shape.packed else dense(rng, rows, columns, columns**-0.5)


def _norm(backend: Backend, rng: np.random.Generator, size: int) -> Vector:
    return backend.prepare_vector(Dense((1 + 0.2 * rng.standard_normal(size)).astype(np.float32)))


def _rope(shape: TinyShape) -> tuple[np.ndarray, np.ndarray]:
    """Plain tables with base 10000."""
    half = shape.head_dim // 2
    angles = np.outer(np.arange(shape.positions), 10000.0 ** (-np.arange(half) / half))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
