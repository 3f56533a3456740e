"""Launcher of linear_wide.cu: linears of more than a few tokens on Hopper, epilogue fused."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Map, Scalar, Shape, ceil_div
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.loader import Unit
from llmrs_cli.kernels.tensor_map import tensor_map
from llmrs_cli.kernels.wide_plans import COLUMNS, WidePlan

EARLY = 4
"""Steps of weights, at most, that a block asks for before it waits for the kernel before; what it reads of that one returns
after them. Measured on an H200."""
EPILOGUES: tuple[Epilogue, ...] = ("store", "add", "silu", "logits")


@dataclass(frozen=True, slots=True)
class Ahead:
    """What a sum leaves for the norm that follows, so that it needs no kernel of its own."""

    norm: Any
    """(K,) float32, the weights of the norm"""
    values: Any
    """(M, K) 16-bit: residual · weights, not yet divided by its root mean square"""
    squares: Any
    """(M, S) float32: the squares of the residual in `parts` sums, S of them or more"""
    parts: int


def unit(bf16: bool, plan: WidePlan, epilogue: Epilogue) -> Unit:
    """The translation unit that serves a plan."""
    sizes = (
        ("WGS", plan.groups),
        ("ROWS", plan.rows),
        ("STAGES", plan.stages),
        ("SLICES", plan.slices),
        ("RESIDENT", 1 if plan.room == "all" else 2),
        ("EPILOGUE", EPILOGUES.index(epilogue)),
    )
    return Unit("linear_wide", (("BF16", int(bf16)), *sizes))


@cache
def _kernel(source: Unit, epilogue: Epilogue, n: int) -> Kernel:
    wide = epilogue in ("add", "logits")
    return Kernel(
        source,
        "linear_wide",
        (
            Map("weight"),
            Map("x"),
            Scalar("alpha", "f32"),
            Buffer("bias", "f32", (n,), optional=True),
            Buffer("out", "f32" if wide else "u16", ("M", n // 2 if epilogue == "silu" else n)),
            Buffer("squares", "f32", ("M", "S"), optional=True),
            Scalar("parts", "i32"),
            Scalar("stride", "i32"),
            Scalar("eps", "f32"),
            Buffer("norm", "f32", (n,), optional=True),
            Buffer("normed", "u16", ("M", n), optional=True),
            Buffer("left", "f32", ("M", "L"), optional=True),
            *(Scalar(name, "i32") for name in ("left_stride", "m", "n", "k", "fetched", "early")),
        ),
    )


def linear_wide(
    device: Device,
    bf16: bool,
    plan: WidePlan,
    epilogue: Epilogue,
    weight: Any,
    x: Any,
    out: Any,
    *,
    bias: Any = None,
    alpha: float = 1.0,
    ahead: Ahead | None = None,
    eps: float = 0.0,
    leaves: Ahead | None = None,
) -> None:
    """out = epilogue(alpha · x · Wᵀ + bias) for any number of tokens; arguments as those of `linear_small`.

    `ahead` holds x before its norm, whose `eps` it takes; `leaves` takes what "add" leaves for the norm after it.
    """
    (m, k), n = x.shape, weight.shape[0]
    if k % 8 or n % 16 or weight.shape[1] != k:
        raise EngineFault(f"linear_wide cannot serve {m} tokens of {tuple(weight.shape)}.")
    if (
        plan.slices > ceil_div(k, COLUMNS)
        or plan.blocks % plan.slices
        or (plan.slices > 1 and plan.blocks != plan.tiles(m, n) * plan.slices)
    ):
        raise EngineFault(f"linear_wide has no place for {m} tokens of {tuple(weight.shape)} in {plan}.")
    if leaves is not None and (epilogue != "add" or leaves.parts != plan.parts(n)):
        raise EngineFault(
            f"linear_wide leaves {plan.parts(n)} sums of squares after an add, not {leaves.parts}."
        )
    for handed in (ahead, leaves):
        if handed is not None and (handed.squares.shape[1] % 4 or handed.squares.shape[1] < handed.parts):
            raise EngineFault(
                f"linear_wide has no room for {handed.parts} sums in rows of {handed.squares.shape[1]}."
            )
    fetched = plan.fetched(m)
    squares, parts = (None, 0) if ahead is None else (ahead.squares, ahead.parts)
    norm, normed, left = (
        (None, None, None) if leaves is None else (leaves.norm, leaves.values, leaves.squares)
    )
    _kernel(unit(bf16, plan, epilogue), epilogue, n).launch(
        device,
        Shape((plan.blocks, 1, 1), (128 * (plan.groups + 1), 1, 1), plan.shared, 1),
        tensor_map(weight, plan.rows), tensor_map(x, fetched), alpha, bias, out,
        squares, parts, 0 if squares is None else squares.shape[1], eps,
        norm, normed, left, 0 if left is None else left.shape[1], m, n, k, fetched, min(EARLY, plan.stages),
    )  # fmt: skip
