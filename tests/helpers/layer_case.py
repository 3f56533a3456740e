"""Random layers for layer_wide, and what is right in float64; whatever holds the arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import bf16_to_f32, f32_to_bf16
from llmrs_cli.kernels.layer_plans import LayerPlan, LayerShape
from llmrs_cli.kernels.layer_wide import LayerMatrices, WholeDevice, layer_wide
from llmrs_cli.kernels.norm_ahead import Ahead

EPS = 1e-5
NAN = 0x7FC0
"""Bits of a bfloat16 that is no number."""
Wide = NDArray[np.float64]
Place = Callable[[NDArray[Any]], Any]
"""Puts an array where the kernel finds it."""


def bits(values: NDArray[Any]) -> tuple[NDArray[np.uint16], Wide]:
    """(bfloat16 as bit patterns, what they stand for)."""
    narrow = f32_to_bf16(np.asarray(values, np.float32))
    return narrow, bf16_to_f32(narrow).astype(np.float64)


def error(found: Any, wanted: Wide) -> float:
    """‖found − wanted‖ / ‖wanted‖; a NaN never passes a comparison with it."""
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def silu_mul(product: Wide) -> Wide:
    """Of (M, 2F) with 8 gates and 8 ups in turn."""
    turns = product.reshape(len(product), -1, 2, 8)
    gate, up = (turns[:, :, i].reshape(len(product), -1) for i in range(2))
    activated: Wide = gate / (1 + np.exp(-gate)) * up
    return activated


@dataclass
class Layer:
    """What is multiplied after one attention, and its norms."""

    shape: LayerShape
    biased: bool
    seed: int = 0
    arrays: dict[str, NDArray[Any]] = field(init=False)
    wide: dict[str, Wide] = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.arrays, self.wide = {}, {}
        for name, (n, k) in zip(("o", "gate_up", "down", "qkv"), self.shape.products, strict=True):
            self.arrays[name], self.wide[name] = bits(rng.standard_normal((n, k), np.float32) / k**0.5)
        sizes = {"gate_up_bias": 2 * self.shape.ffn, "qkv_bias": self.shape.qkv}
        for name, n in sizes.items() if self.biased else ():
            self.arrays[name] = rng.standard_normal(n).astype(np.float32)
        for name in ("norm_mlp", "norm_next"):
            self.arrays[name] = rng.uniform(0.5, 1.5, self.shape.hidden).astype(np.float32)

    def bias(self, name: str) -> Any:
        return self.arrays.get(f"{name}_bias", 0.0)

    def wanted(self, residual: Wide, mixed: Wide) -> dict[str, Wide]:
        """Every result of the launch."""
        eps = EPS
        w = self.wide

        def normed(x: Wide, norm: str) -> Wide:
            scaled: Wide = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + eps) * self.arrays[norm]
            return scaled

        middle = residual + mixed @ w["o"].T
        activated = silu_mul(normed(middle, "norm_mlp") @ w["gate_up"].T + self.bias("gate_up"))
        last = middle + activated @ w["down"].T
        qkv = normed(last, "norm_next") @ w["qkv"].T + self.bias("qkv")
        return {
            "activated": activated,
            "residual": last,
            "values_next": last * self.arrays["norm_next"],
            "squares_next": (last * last).sum(axis=1),
            "qkv": qkv,
        }


@dataclass
class Arrays:
    """A layer's matrices where the kernel finds them, and room for what it makes of M tokens."""

    layer: Layer
    plan: LayerPlan
    m: int
    place: Place
    with_qkv: bool = True
    one_room: bool = True
    """Whether both norms have the same arrays, as in a model"""

    def __post_init__(self) -> None:
        layer, shape, place, m = self.layer, self.layer.shape, self.place, self.m
        held = {name: place(array) for name, array in layer.arrays.items()}
        self.matrices = LayerMatrices(
            held["o"], held["gate_up"], held["down"], held["qkv"] if self.with_qkv else None,
            held.get("gate_up_bias"), held.get("qkv_bias") if self.with_qkv else None,
        )  # fmt: skip
        parts = self.plan.parts(shape.hidden)

        def room(norm: str) -> Ahead:
            squares = np.full((m, -(-parts // 4) * 4 + 4), np.nan, np.float32)
            values = np.full((m, shape.hidden), NAN, np.uint16)
            return Ahead(held[norm], place(values), place(squares), parts)

        self.mlp = room("norm_mlp")
        self.after: Ahead | None = room("norm_next")
        if self.one_room:
            self.after = Ahead(held["norm_next"], self.mlp.values, self.mlp.squares, parts)
        self.activated = place(np.full((m, shape.ffn), NAN, np.uint16))
        self.qkv = place(np.full((m, shape.qkv), NAN, np.uint16)) if self.with_qkv else None

    def run(self, device: WholeDevice, mixed: Any, residual: Any, meeting: Any) -> None:
        """The launch; `residual` changes in place."""
        layer_wide(
            device, True, self.plan, self.matrices, mixed, residual, self.activated, self.mlp, self.after,
            self.qkv, meeting, EPS,
        )  # fmt: skip
