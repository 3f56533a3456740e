"""Counts activations that were too large for the type they are stored in, while a backend reads a text.

Some models have a few activations of tens of thousands, where float16 ends: kernels store the largest float16 for
them. That is rarely felt and never silent here: `Saturations` stands between the decoder and a backend, and what it
counts lands in the verdict of `llmrs verify`. Engines generate without it.
"""

from __future__ import annotations

from llmrs_cli.engine.arrays import Array, StepArrays
from llmrs_cli.engine.backends.base import Backend, Hidden
from llmrs_cli.engine.backends.handles import Geometry, KvLayer, LayerWeights, Linear, RopeTable, Vector


class Saturations:
    """The decoder's ops of `backend`, over one step whose first `tokens` tokens count."""

    def __init__(self, backend: Backend, tokens: int) -> None:
        self._backend = backend
        self._looks = backend.looks()
        self._tokens = tokens
        self._layer = -1
        self.counts: dict[str, int] = {}
        """Values at the end of their type by the place that gave them, such as "layer 3 norm_gate_up"."""

    def embed(self, table: Linear, step: StepArrays) -> Hidden:
        return self._backend.embed(table, step)

    def norm_qkv_rope_store(
        self, hidden: Hidden, layer: LayerWeights, kv: KvLayer, rope: RopeTable, step: StepArrays
    ) -> Array:
        self._layer += 1
        self._count_norm("attention norm", hidden, layer.attention_norm)
        q = self._backend.norm_qkv_rope_store(hidden, layer, kv, rope, step)
        self._count("norm_qkv_rope_store", self._looks.saturated(q, self._tokens))
        return q

    def attend(self, q: Array, kv: KvLayer, step: StepArrays, geometry: Geometry) -> Array:
        mixed = self._backend.attend(q, kv, step, geometry)
        self._count("keys and values", self._looks.saturated_kv(kv))
        self._count("attend", self._looks.saturated(mixed, self._tokens))
        return mixed

    def project_add(self, x: Array, weight: Linear, hidden: Hidden, norm: Vector | None = None) -> None:
        self._backend.project_add(x, weight, hidden, norm)

    def choose(self, hidden: Hidden, mixed: Array, tokens: Array) -> tuple[Hidden, Array]:
        self._tokens = len(tokens)
        return self._backend.choose(hidden, mixed, tokens)

    def head(self, hidden: Hidden, norm: Vector, eps: float, head: Linear) -> Array:
        return self._backend.head(hidden, norm, eps, head)

    def norm_gate_up(self, hidden: Hidden, layer: LayerWeights) -> Array:
        self._count_norm("mlp norm", hidden, layer.mlp_norm)
        activated = self._backend.norm_gate_up(hidden, layer)
        self._count("norm_gate_up", self._looks.saturated(activated, self._tokens))
        return activated

    def _count_norm(self, place: str, hidden: Hidden, norm: Vector) -> None:
        self._count(place, self._looks.saturated_norm(hidden.residual, norm, self._tokens))

    def _count(self, place: str, found: int) -> None:
        if found:
            self.counts[f"layer {self._layer} {place}"] = found
