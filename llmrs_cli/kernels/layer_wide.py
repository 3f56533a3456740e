"""Launcher of layer_wide.cu: the four products between two attentions in one launch on Hopper."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels import norm_ahead
from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Map, Scalar, Shape
from llmrs_cli.kernels.layer_plans import EIGHT, LayerPlan, LayerShape
from llmrs_cli.kernels.loader import Unit
from llmrs_cli.kernels.norm_ahead import Ahead
from llmrs_cli.kernels.tensor_map import tensor_map
from llmrs_cli.kernels.wide_plans import at_once

NO_MAP = bytes(128)
"""In place of a matrix that is not there."""


class WholeDevice(Device, Protocol):
    """A device that says how many multiprocessors it has: the blocks of the launch wait for each other."""

    multiprocessors: int


@dataclass(frozen=True, slots=True)
class LayerMatrices:
    """What is multiplied between two attentions; 16-bit, biases float32."""

    o: Any
    """(C, H)"""
    gate_up: Any
    """(2F, C), 8 gates and 8 ups in turn"""
    down: Any
    """(C, F)"""
    qkv: Any = None
    """(Q, C) of the layer that follows; None behind the last one"""
    gate_up_bias: Any = None
    """(2F,) or None"""
    qkv_bias: Any = None
    """(Q,) or None"""

    @property
    def shape(self) -> LayerShape:
        """Of the products. Without qkv its rows count as few as there may be."""
        (c, h), f = self.o.shape, self.down.shape[1]
        return LayerShape(h, c, f, EIGHT if self.qkv is None else self.qkv.shape[0])


def unit(bf16: bool, plan: LayerPlan) -> Unit:
    """The translation unit that serves a plan."""
    sizes = (
        ("WGS", plan.groups),
        ("SLICES", plan.slices),
        ("W_STAGES", plan.stages),
        ("X_STAGES", plan.x_stages),
        ("ROWS", plan.gate_rows),
        ("ADD_ROWS", plan.add_rows),
        ("QKV_ROWS", plan.qkv_rows),
    )
    return Unit("layer_wide", (("BF16", int(bf16)), *sizes))


@cache
def _kernel(source: Unit, shape: LayerShape) -> Kernel:
    c, f, q = shape.hidden, shape.ffn, shape.qkv
    maps = ("o", "mixed", "gate_up", "x_mlp", "down", "x_down", "qkv_weight", "x_next")
    return Kernel(
        source,
        "layer_wide",
        (
            *map(Map, maps),
            Buffer("residual", "f32", ("M", c)),
            Buffer("norm_mlp", "f32", (c,)),
            Buffer("values_mlp", "u16", ("M", c)),
            Buffer("squares_mlp", "f32", ("M", "S")),
            Scalar("stride_mlp", "i32"),
            Buffer("gate_up_bias", "f32", (2 * f,), optional=True),
            Buffer("activated", "u16", ("M", f)),
            Buffer("norm_next", "f32", (c,), optional=True),
            Buffer("values_next", "u16", ("M", c), optional=True),
            Buffer("squares_next", "f32", ("M", "L"), optional=True),
            Scalar("stride_next", "i32"),
            Buffer("qkv_bias", "f32", (q,), optional=True),
            Buffer("qkv", "u16", ("M", q), optional=True),
            Buffer("meeting", "i32", ("A",)),
            Scalar("eps", "f32"),
            *(Scalar(name, "i32") for name in ("m", "h", "c", "f", "q", "fetched")),
        ),
    )


def layer_wide(
    device: WholeDevice,
    bf16: bool,
    plan: LayerPlan,
    matrices: LayerMatrices,
    mixed: Any,
    residual: Any,
    activated: Any,
    mlp: Ahead,
    after: Ahead | None,
    qkv: Any,
    meeting: Any,
    eps: float,
) -> None:
    """All that follows an attention until the next one.

    residual (M, C) float32 += mixed (M, H) 16-bit · Wᵀ of o; `activated` (M, F) 16-bit = SiLU·mul of its norm `mlp` through
    gate and up; residual += activated · Wᵀ of down; `qkv` (M, Q) 16-bit = its norm `after` through qkv. `mlp` and `after`
    are left as linear_wide leaves them, and may have the same arrays. Behind the last layer `qkv` is None, and `after` is
    left to who comes later, or None too. `meeting` (A,) int32, `plan.counts(F)` or more, is zero before and after.

    All blocks run at once and wait for each other: two such launches at the same time could wait for ever. Raises
    EngineFault for arrays that do not agree with each other or with the plan.
    """
    m, shape = len(mixed), matrices.shape
    _check(device, plan, matrices, mixed, residual, mlp, after, qkv, meeting)
    fetched = plan.fetched(m)
    norm, values, squares = (None, None, None) if after is None else (after.norm, after.values, after.squares)
    has_qkv = matrices.qkv is not None
    _kernel(unit(bf16, plan), shape).launch(
        device,
        Shape((plan.blocks, 1, 1), (128 * (plan.groups + 1), 1, 1), plan.shared, 1),
        tensor_map(matrices.o, plan.add_rows), tensor_map(mixed, fetched),
        tensor_map(matrices.gate_up, plan.gate_rows), tensor_map(mlp.values, fetched),
        tensor_map(matrices.down, plan.add_rows), tensor_map(activated, fetched),
        tensor_map(matrices.qkv, plan.qkv_rows) if has_qkv else NO_MAP,
        tensor_map(values, fetched) if has_qkv else NO_MAP,
        residual, mlp.norm, mlp.values, mlp.squares, mlp.squares.shape[1],
        matrices.gate_up_bias, activated, norm, values, squares, 0 if squares is None else squares.shape[1],
        matrices.qkv_bias, qkv, meeting, eps,
        m, shape.heads, shape.hidden, shape.ffn, shape.qkv if has_qkv else 0, fetched,
    )  # fmt: skip


def _check(
    device: WholeDevice,
    plan: LayerPlan,
    matrices: LayerMatrices,
    mixed: Any,
    residual: Any,
    mlp: Ahead,
    after: Ahead | None,
    qkv: Any,
    meeting: Any,
) -> None:
    """Raise EngineFault for what the kernel's parameters do not say."""
    shape = matrices.shape
    wanted = {"o": matrices.o, "gate_up": matrices.gate_up, "down": matrices.down, "qkv": matrices.qkv}
    for (name, weight), (n, k) in zip(wanted.items(), shape.products, strict=True):
        if weight is not None and weight.shape != (n, k):
            raise EngineFault(f"layer_wide: {name} must be ({n}, {k}), not {tuple(weight.shape)}.")
    if not plan.serves(len(mixed), shape) or mixed.shape != (len(residual), shape.heads):
        raise EngineFault(f"layer_wide has no place for {tuple(mixed.shape)} tokens of {shape} in {plan}.")
    if len(meeting) < plan.counts(shape.ffn):
        raise EngineFault(f"layer_wide meets in {plan.counts(shape.ffn)} words, not in {len(meeting)}.")
    if plan.blocks > at_once(plan.slices, device.multiprocessors):
        raise EngineFault(f"layer_wide: {plan.blocks} blocks do not run at once on this GPU.")
    if (qkv is None) != (matrices.qkv is None) or (qkv is not None and after is None):
        raise EngineFault(
            "layer_wide: qkv takes the weights, the norm before them and room for what it makes."
        )
    for left in (mlp, after):
        if left is not None:
            norm_ahead.check("layer_wide", "add", plan.parts(shape.hidden), None, left)
