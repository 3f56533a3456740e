"""The forward pass of a decoder-only transformer, written once for every family and backend.

A layer is five fused ops; what differs between Llama, Mistral and Qwen stands in the weights (a bias, a
per-head norm, a window), not here. Two functions, since a step is two launches: the body, then the
head with the sampler, so that a grammar's mask may be written in between.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmrs_cli.engine.arrays import Array, StepArrays
from llmrs_cli.engine.backends.base import Backend, Hidden
from llmrs_cli.engine.backends.handles import KvLayer, ModelWeights


def run_body(backend: Backend, model: ModelWeights, kv: Sequence[KvLayer], step: StepArrays) -> Hidden:
    """All layers over the step's T tokens; stores their keys and values."""
    hidden = backend.embed(model.embedding, step)
    following = [*(layer.attention_norm for layer in model.layers[1:]), None]
    for layer, cache, after in zip(model.layers, kv, following, strict=True):
        q = backend.norm_qkv_rope_store(hidden, layer, cache, model.rope, step)
        mixed = backend.attend(q, cache, step, layer.geometry)
        backend.project_add(mixed, layer.o, hidden, layer.mlp_norm)
        activated = backend.norm_gate_up(hidden, layer)
        backend.project_add(activated, layer.down, hidden, after)
    return hidden


def run_head(backend: Backend, model: ModelWeights, hidden: Hidden, tokens: Array) -> Array:
    """Float32 logits (R, V) of the chosen tokens, (R,) indices into T."""
    return backend.head(hidden, tokens, model.norm, model.eps, model.head)
