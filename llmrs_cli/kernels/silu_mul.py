"""Launcher of silu_mul.cu: the gated activation between two large linears."""

from __future__ import annotations

from typing import Any

from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Scalar, Shape, ceil_div
from llmrs_cli.kernels.loader import Unit


def unit(bf16: bool) -> Unit:
    """The translation unit for one 16-bit type."""
    return Unit("silu_mul", (("BF16", int(bf16)),))


def silu_mul(device: Device, bf16: bool, gate_up: Any, out: Any) -> None:
    """out = silu(gate) · up: gate_up (T, 2F), out (T, F), both 16-bit; F a multiple of 8."""
    tokens, f = out.shape
    params = (Buffer("gate_up", "u16", ("T", 2 * f)), Buffer("y", "u16", ("T", "F")), Scalar("f", "i32"))
    kernel = Kernel(unit(bf16), "silu_mul", params)
    kernel.launch(device, Shape((ceil_div(f, 2048), tokens, 1), (256, 1, 1)), gate_up, out, f)
