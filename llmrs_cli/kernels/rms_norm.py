"""Launcher of rms_norm.cu: RMS norm of the float32 residual into 16-bit activations."""

from __future__ import annotations

from functools import cache
from typing import Any

from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Scalar, Shape
from llmrs_cli.kernels.loader import Unit

_PARAMS = (
    Buffer("x", "f32", ("M", "C")),
    Buffer("weight", "f32", ("C",)),
    Buffer("y", "u16", ("M", "C")),
    Scalar("c", "i32"),
    Scalar("eps", "f32"),
)


def unit(bf16: bool) -> Unit:
    """The translation unit for one 16-bit type."""
    return Unit("rms_norm", (("BF16", int(bf16)),))


@cache
def _kernel(bf16: bool) -> Kernel:
    return Kernel(unit(bf16), "rms_norm", _PARAMS)


def rms_norm(device: Device, bf16: bool, x: Any, weight: Any, eps: float, out: Any) -> None:
    """x (M, C) float32, weight (C,), out (M, C) 16-bit."""
    tokens, c = out.shape
    _kernel(bf16).launch(device, Shape((tokens, 1, 1), (256, 1, 1)), x, weight, out, c, eps)
