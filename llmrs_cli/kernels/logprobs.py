"""Launcher of logprobs.cu: log-softmax at one id a row, with alternatives."""

from __future__ import annotations

from typing import Any

from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Scalar, Shape
from llmrs_cli.kernels.loader import Unit

UNIT = Unit("logprobs")


_ADDRESSES = ("targets", "at", "top_ids", "top_logprobs", "invalid")
_KERNEL = Kernel(
    UNIT,
    "logprobs",
    (
        Buffer("logits", "f32", ("R", "V")),
        *(Scalar(name, "u64") for name in _ADDRESSES),
        *(Scalar(name, "i32") for name in ("vocab", "stride", "alternatives")),
    ),
)


def logprobs(
    device: Device, logits: Any, targets: int, stride: int, out: tuple[int, ...], alternatives: int
) -> None:
    """logits (R, V); target of row r at address `targets` + 4 · r · stride.

    `out` are the addresses of (R,) float32, (R, L) int32, (R, L) float32 and (R,) int32 (a NaN was met).
    """
    rows, vocab = logits.shape
    _KERNEL.launch(
        device, Shape((rows, 1, 1), (1024, 1, 1)), logits, targets, *out, vocab, stride, alternatives
    )
