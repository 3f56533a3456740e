"""Launcher of silu_mul.cu: the gated activation between two large linears."""

from __future__ import annotations

from functools import cache
from typing import Any

from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Scalar, Shape, ceil_div
from llmrs_cli.kernels.loader import Unit


def unit(bf16: bool) -> Unit:
    """The translation unit for one 16-bit type."""
    return Unit("silu_mul", (("BF16", int(bf16)),))


def headroom(bf16: bool) -> float:
    """Factor on gated activations: float16 has no room for massive ones (HEADROOM in common.cuh)."""
    return 1.0 if bf16 else 1 / 16


@cache
def _kernel(bf16: bool, f: int) -> Kernel:
    params = (Buffer("gate_up", "u16", ("T", 2 * f)), Buffer("y", "u16", ("T", f)), Scalar("f", "i32"))
    return Kernel(unit(bf16), "silu_mul", params)


def silu_mul(device: Device, bf16: bool, gate_up: Any, out: Any) -> None:
    """out = silu(gate) · up · headroom: gate_up (T, 2F) with 8 gates and 8 ups in turn,
    out (T, F), both 16-bit; F a multiple of 8."""
    tokens, f = out.shape
    _kernel(bf16, f).launch(device, Shape((ceil_div(f, 2048), tokens, 1), (256, 1, 1)), gate_up, out, f)
