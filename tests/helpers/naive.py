"""Oracles without paging, chunks or cache: a whole sequence, recomputed for every token.

`naive_logits` is a second, independent implementation in float64 over a model held by the reference
backend. `solo_logits` is one step of any backend over one sequence alone, the whole of it in one chunk:
what chunked, batched, preempted or prefix-hit generation on that backend must agree with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.backends.base import Backend, RowLimits
from llmrs_cli.engine.backends.handles import LayerWeights, Linear, ModelWeights, Vector
from llmrs_cli.engine.backends.reference import CanonicalLinear
from llmrs_cli.engine.model.decoder import run_body, run_head
from tests.helpers.steps import batch, greedy

Wide = NDArray[np.float64]
Logits = Callable[[Sequence[int]], NDArray[np.floating]]
"""Token ids → (V,) logits of the last one."""


def naive_logits(model: ModelWeights, ids: Sequence[int]) -> Wide:
    """(T,) ids → (T, V) logits; `model` was prepared by the reference backend."""
    embedding, head = _matrix(model.embedding), _matrix(model.head)
    x = embedding[list(ids)]
    for layer in model.layers:
        x = x + _attention(_norm(x, layer.attention_norm, model.eps), layer, model)
        gate, up = np.split(_linear(_norm(x, layer.mlp_norm, model.eps), layer.gate_up), 2, axis=-1)
        x = x + _linear(gate / (1 + np.exp(-gate)) * up, layer.down)
    return np.asarray(_norm(x, model.norm, model.eps) @ head.T)


def greedy_answer(logits: Logits, prompt: Sequence[int], count: int) -> tuple[list[int], list[float]]:
    """`count` greedy ids after `prompt`, and at each the margin between the two best logits."""
    ids, margins = list(prompt), []
    for _ in range(count):
        last = logits(ids)
        second, best = np.sort(last)[-2:]
        margins.append(float(best - second))
        ids.append(int(np.argmax(last)))
    return ids[len(prompt) :], margins


def solo_logits(backend: Backend, model: ModelWeights, ids: Sequence[int], vocab: int) -> NDArray[np.float32]:
    """(T, V) logits of one sequence in one step of `backend` (host arrays only)."""
    return forced_logits(backend, model, [ids], [len(ids)], vocab)[0]


def forced_logits(
    backend: Backend,
    model: ModelWeights,
    sequences: Sequence[Sequence[int]],
    wanted: Sequence[int],
    vocab: int,
) -> list[NDArray[np.float32]]:
    """One step of `backend` over whole sequences: logits of the last `wanted[i]` tokens of each."""
    geometry = model.layers[0].geometry
    longest = max(map(len, sequences))
    width = -(-longest // backend.block_size)
    kv = backend.alloc_kv(len(model.layers), width * len(sequences), geometry.kv_heads, geometry.head_dim)
    rows = backend.open_rows(RowLimits(rows=len(sequences), context=longest, vocab=vocab))
    for row, ids in enumerate(sequences):
        rows.start(row, ids, greedy(prompt=len(ids)))
        rows.grant(row, 0, range(row * width, (row + 1) * width))
    step = rows.begin(batch(*((row, 0, len(ids), False) for row, ids in enumerate(sequences))))
    hidden = run_body(backend, model, kv, step)
    ends = np.cumsum([len(ids) for ids in sequences])
    positions = [np.arange(end - count, end) for end, count in zip(ends, wanted, strict=True)]
    return [np.array(run_head(backend, model, hidden, part), np.float32) for part in positions]


def _attention(x: Wide, layer: LayerWeights, model: ModelWeights) -> Wide:
    g = layer.geometry
    heads = _linear(x, layer.qkv).reshape(len(x), -1, g.head_dim)
    q, k, v = heads[:, : g.heads], heads[:, g.heads : g.heads + g.kv_heads], heads[:, g.heads + g.kv_heads :]
    q = _rotate(q if layer.q_norm is None else _norm(q, layer.q_norm, g.eps), model)
    k = _rotate(k if layer.k_norm is None else _norm(k, layer.k_norm, g.eps), model)
    out = np.zeros((len(x), g.heads, g.head_dim))
    for t in range(len(x)):
        first = 0 if g.window is None else max(0, t + 1 - g.window)
        for h in range(g.heads):
            keys, values = (part[first : t + 1, h * g.kv_heads // g.heads] for part in (k, v))
            scores = keys @ q[t, h] / np.sqrt(g.head_dim)
            weights = np.exp(scores - scores.max())
            out[t, h] = weights @ values / weights.sum()
    return _linear(out.reshape(len(x), -1), layer.o)


def _rotate(x: Wide, model: ModelWeights) -> Wide:
    """(T, H, D) as complex numbers turned by the angle of their position."""
    cos, sin = model.rope
    turned = (x[..., : x.shape[-1] // 2] + 1j * x[..., x.shape[-1] // 2 :]) * (
        cos[: len(x), None] + 1j * sin[: len(x), None]
    )
    return np.concatenate([turned.real, turned.imag], axis=-1)


def _norm(x: Wide, weight: Vector, eps: float) -> Wide:
    return np.asarray(x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight)


def _linear(x: Wide, weight: Linear) -> Wide:
    assert isinstance(weight, CanonicalLinear)
    product = x @ _matrix(weight).T
    return product if weight.bias is None else product + weight.bias


def _matrix(weight: Linear) -> Wide:
    assert isinstance(weight, CanonicalLinear)
    return np.concatenate([part.dequantise() for part in weight.parts]).astype(np.float64)
