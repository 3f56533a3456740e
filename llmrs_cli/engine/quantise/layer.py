"""One decoder layer in float32 on the host: its weights, its forward pass, and its way into 4 bits.

The forward pass is the decoder's, made of the reference's ops with products in float32, because only here
must the inputs of every linear layer be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llmrs_cli.engine.backends.handles import Geometry
from llmrs_cli.engine.backends.reference import ReferenceBackend, attend_last
from llmrs_cli.engine.model.names import (
    ATTENTION_NORM,
    DOWN,
    GATE,
    K_NORM,
    MLP_NORM,
    Q_NORM,
    UP,
    K,
    O,
    Q,
    V,
    in_layer,
)
from llmrs_cli.engine.model.spec import ModelSpec
from llmrs_cli.engine.quantise.rounding import Rounded, Values, round_matrix
from llmrs_cli.engine.quantise.search import Inputs, best_clip, best_scales
from llmrs_cli.engine.weights.checkpoint import Checkpoint
from llmrs_cli.errors import ModelError, quoted

LINEARS = (Q, K, V, O, GATE, UP, DOWN)
FED = {"qkv": (Q, K, V), "o": (O,), "gate_up": (GATE, UP), "down": (DOWN,)}
"""Linear layers by the inputs that they share."""
See = Callable[[str, Values], None]
"""Told of the inputs (T, K) of each entry of FED."""
_OPS = ReferenceBackend()


@dataclass
class FloatLayer:
    """Weights that may be changed."""

    geometry: Geometry
    weights: dict[str, Values]
    """(N, K) of each of LINEARS"""
    biases: dict[str, Values]
    norms: dict[str, Values]

    def linear(self, x: Values, *modules: str) -> list[Values]:
        outputs = []
        for module in modules:
            y = x @ self.weights[module].T
            outputs.append(y + self.biases[module] if module in self.biases else y)
        return outputs

    def forward(self, x: Values, rope: tuple[Values, Values], see: See = lambda name, x: None) -> Values:
        """(T, C) residual of one sequence from its first token on → what the layer adds to it."""
        geometry = self.geometry
        normed = _OPS.rms_norm(x, self.norms[ATTENTION_NORM], geometry.eps)
        see("qkv", normed)
        q, k, v = (y.reshape(len(x), -1, geometry.head_dim) for y in self.linear(normed, Q, K, V))
        if Q_NORM in self.norms:
            q = _OPS.rms_norm(q, self.norms[Q_NORM], geometry.eps)
            k = _OPS.rms_norm(k, self.norms[K_NORM], geometry.eps)
        positions = np.arange(len(x))
        q, k = (_OPS.rope(y, positions, rope) for y in (q, k))
        mixed = attend_last(q, k, v, geometry)
        see("o", mixed)
        middle = x + self.linear(mixed, O)[0]
        normed = _OPS.rms_norm(middle, self.norms[MLP_NORM], geometry.eps)
        see("gate_up", normed)
        activated = _OPS.silu_mul(np.concatenate(self.linear(normed, GATE, UP), axis=1))
        see("down", activated)
        added: Values = middle - x + self.linear(activated, DOWN)[0]
        return added

    def vectors(self) -> dict[str, Values]:
        """Norms and biases under their names in the layer."""
        return self.norms | {f"{module}.bias": values for module, values in self.biases.items()}

    # -- into 4 bits --------------------------------------------------------------------------------------

    def quantise(self, inputs: Mapping[str, Inputs], group: int, *, plain: bool) -> dict[str, Rounded]:
        """Each of LINEARS in 4 bits. Changes weights, biases and norms to what is stored.

        `plain` rounds to nearest; else columns are scaled and ranges shrunk first (see `search`).
        """
        scales: dict[str, Values] = {}
        if not plain:
            heads = self.geometry.kv_heads, self.geometry.heads // self.geometry.kv_heads
            scales["o"] = self._scale_rows(V, O, best_scales([self.weights[O]], inputs["o"], heads), heads[1])
            scales["down"] = self._scale_rows(UP, DOWN, best_scales([self.weights[DOWN]], inputs["down"]), 1)
            for fed, norm in (("qkv", ATTENTION_NORM), ("gate_up", MLP_NORM)):
                weights = [self.weights[module] for module in FED[fed]]
                scales[fed] = self._scale_norm(norm, FED[fed], best_scales(weights, inputs[fed]))
        rounded = {}
        for fed, modules in FED.items():
            for module in modules:
                clip = None if plain else best_clip(self.weights[module], inputs[fed], scales[fed])
                rounded[module] = round_matrix(self.weights[module], group, clip)
                self.weights[module] = rounded[module].dequantise()
        return rounded

    def _scale_norm(self, norm: str, modules: Sequence[str], scales: Values) -> Values:
        """Multiply columns and divide the norm before them; the factors that the norm in float16 leaves."""
        old = self.norms[norm]
        with np.errstate(over="ignore"):
            new = (old / scales).astype(np.float16).astype(np.float32)
        kept = (new == 0) | ~np.isfinite(new)
        factors = np.divide(old, new, out=np.ones_like(old), where=~kept)
        self.norms[norm] = np.where(kept, old, new)
        for module in modules:
            self.weights[module] *= factors
        return factors

    def _scale_rows(self, above: str, below: str, scales: Values, repeated: int) -> Values:
        """Multiply the columns of `below` and divide the rows of `above` that feed them."""
        rows = (
            scales.reshape(-1, repeated, self.geometry.head_dim)[:, 0].reshape(-1) if repeated > 1 else scales
        )
        self.weights[above] /= rows[:, None]
        if above in self.biases:
            self.biases[above] /= rows
        self.weights[below] *= scales
        return scales


def read_layer(checkpoint: Checkpoint, number: int) -> FloatLayer:
    """Layer `number` widened to float32. Raises ModelError for values that float16 cannot hold."""
    spec, stored = checkpoint.spec, checkpoint.parameters

    def read(name: str) -> Values:
        values = stored[in_layer(number, name)].read().dequantise()
        if not (np.abs(values).max() <= np.finfo(np.float16).max):  # a NaN is none of them either
            raise ModelError(f"{quoted(in_layer(number, name), 120)} holds values that float16 cannot.")
        return values

    norms = [ATTENTION_NORM, MLP_NORM, *([Q_NORM, K_NORM] if spec.qk_norm else [])]
    biased = [module for module in LINEARS if in_layer(number, f"{module}.bias") in stored]
    return FloatLayer(
        geometry=spec.geometry(number),
        weights={module: read(f"{module}.weight") for module in LINEARS},
        biases={module: read(f"{module}.bias") for module in biased},
        norms={name: read(name) for name in norms},
    )


def no_inputs(spec: ModelSpec, group: int) -> dict[str, Inputs]:
    """Nothing seen yet, for each entry of FED."""
    queries = spec.heads * spec.head_dim
    columns = {"qkv": spec.hidden, "o": queries, "gate_up": spec.hidden, "down": spec.ffn}
    return {fed: Inputs(k, group) for fed, k in columns.items()}
