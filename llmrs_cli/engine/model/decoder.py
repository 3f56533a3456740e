"""The forward pass of a decoder-only transformer, written once for every family and backend.

A layer is five fused ops; what differs between Llama, Mistral and Qwen stands in the weights (a bias, a
per-head norm, a window), not here. Two functions, since a step is two launches: the body, then the
head with the sampler, so that a grammar's mask may be written in between.

The body ends with the last attention: what comes after it changes no token but its own, so the head computes it for
the tokens whose logits are wanted, and a prompt's others are spared the larger part of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmrs_cli.engine.arrays import Array, StepArrays
from llmrs_cli.engine.backends.base import Backend, Hidden
from llmrs_cli.engine.backends.handles import KvLayer, LayerWeights, ModelWeights, Vector


@dataclass(frozen=True, slots=True)
class Body:
    """What a step's body leaves for its heads."""

    hidden: Hidden
    """(T, C) before the last layer's output projection"""
    mixed: Array
    """(T, Hq·D) of the last attention"""


def run_body(backend: Backend, model: ModelWeights, kv: Sequence[KvLayer], step: StepArrays) -> Body:
    """All layers up to the last attention over the step's T tokens; stores their keys and values."""
    hidden = backend.embed(model.embedding, step)
    mixed: Array = None
    for i, (layer, cache) in enumerate(zip(model.layers, kv, strict=True)):
        if i:
            _finish(backend, model.layers[i - 1], hidden, mixed, layer.attention_norm)
        q = backend.norm_qkv_rope_store(hidden, layer, cache, model.rope, step)
        mixed = backend.attend(q, cache, step, layer.geometry)
    return Body(hidden, mixed)


def run_head(backend: Backend, model: ModelWeights, body: Body, tokens: Array) -> Array:
    """Float32 logits (R, V) of the chosen tokens, (R,) distinct indices into T, ascending.

    A head over all T tokens may use `body` up.
    """
    hidden, mixed = backend.choose(body.hidden, body.mixed, tokens)
    _finish(backend, model.layers[-1], hidden, mixed, model.norm)
    return backend.head(hidden, model.norm, model.eps, model.head)[: len(tokens)]


def _finish(backend: Backend, layer: LayerWeights, hidden: Hidden, mixed: Array, after: Vector) -> None:
    """A layer from its attention on; the norm `after` reads what it leaves."""
    backend.project_add(mixed, layer.o, hidden, layer.mlp_norm)
    activated = backend.norm_gate_up(hidden, layer)
    backend.project_add(activated, layer.down, hidden, after)
