"""What a sum leaves for the norm that follows it, so that the norm needs no kernel: the launchers' side of it. No CUDA.

The product that adds leaves each new value of the residual times the norm's weight in 16 bits, and sums of squares; the
product after the norm multiplies the former, and scales its sums by 1 / rms from the latter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.launch import Buffer, Param, Scalar


@dataclass(frozen=True, slots=True)
class Ahead:
    """What has been left of M tokens of K values."""

    norm: Any
    """(K,) float32, the weights of the norm"""
    values: Any
    """(M, K) 16-bit: residual · weights, not yet divided by its root mean square"""
    squares: Any
    """(M, S) float32: the squares of the residual in `parts` sums, S of them or more"""
    parts: int


def params(n: int) -> tuple[Param, ...]:
    """Of a kernel whose product has N rows."""
    return (
        Buffer("squares", "f32", ("M", "S"), optional=True),
        Scalar("parts", "i32"),
        Scalar("stride", "i32"),
        Scalar("eps", "f32"),
        Buffer("norm", "f32", (n,), optional=True),
        Buffer("normed", "u16", ("M", n), optional=True),
        Buffer("left", "f32", ("M", "L"), optional=True),
        Scalar("left_stride", "i32"),
    )


def operands(ahead: Ahead | None, eps: float, leaves: Ahead | None) -> tuple[Any, ...]:
    """Their values: `ahead` is what the product takes, `leaves` what it leaves."""
    taken = (None, 0, 0) if ahead is None else (ahead.squares, ahead.parts, ahead.squares.shape[1])
    if leaves is None:
        return *taken, eps, None, None, None, 0
    return *taken, eps, leaves.norm, leaves.values, leaves.squares, leaves.squares.shape[1]


def check(kernel: str, epilogue: str, parts: int, ahead: Ahead | None, leaves: Ahead | None) -> None:
    """Raises EngineFault unless both have room, and what is left are `parts` sums after an add."""
    if leaves is not None and (epilogue != "add" or leaves.parts != parts):
        raise EngineFault(f"{kernel} leaves {parts} sums of squares after an add, not {leaves.parts}.")
    for handed in (ahead, leaves):
        if handed is not None and (handed.squares.shape[1] % 4 or handed.squares.shape[1] < handed.parts):
            raise EngineFault(
                f"{kernel} has no room for {handed.parts} sums in rows of {handed.squares.shape[1]}."
            )
