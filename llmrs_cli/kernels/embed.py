"""Launcher of embed.cu: rows of the embedding table as the float32 residual stream."""

from __future__ import annotations

from functools import cache
from typing import Any

from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Scalar, Shape
from llmrs_cli.kernels.loader import Unit

_PARAMS = (
    Buffer("table", "u16", ("V", "C")),
    Buffer("ids", "i32", ("T",)),
    Buffer("out", "f32", ("T", "C")),
    Scalar("c", "i32"),
)


def unit(bf16: bool) -> Unit:
    """The translation unit for one 16-bit type."""
    return Unit("embed", (("BF16", int(bf16)),))


@cache
def _kernel(bf16: bool) -> Kernel:
    return Kernel(unit(bf16), "embed", _PARAMS)


def embed(device: Device, bf16: bool, table: Any, ids: Any, out: Any) -> None:
    """out[t] = table[ids[t]], zeros where that is -1: table (V, C) 16-bit, ids (T,), out (T, C) float32; C a multiple of 8."""
    tokens, c = out.shape
    _kernel(bf16).launch(device, Shape((tokens, 1, 1), (256, 1, 1)), table, ids, out, c)
