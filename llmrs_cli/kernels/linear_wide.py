"""Launcher of linear_wide.cu: linears of more than a few tokens on Hopper, epilogue fused."""

from __future__ import annotations

from functools import cache
from typing import Any

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels import norm_ahead
from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Map, Scalar, Shape, ceil_div
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.loader import Unit
from llmrs_cli.kernels.norm_ahead import Ahead
from llmrs_cli.kernels.tensor_map import tensor_map
from llmrs_cli.kernels.wide_plans import COLUMNS, WidePlan

EARLY = 4
"""Steps of weights, at most, that a block asks for before it waits for the kernel before; what it reads of that one returns
after them. Measured on an H200."""
EPILOGUES: tuple[Epilogue, ...] = ("store", "add", "silu", "logits")


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
            *norm_ahead.params(n),
            *(Scalar(name, "i32") for name in ("m", "n", "k", "fetched", "early")),
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
    norm_ahead.check("linear_wide", epilogue, plan.parts(n), ahead, leaves)
    fetched = plan.fetched(m)
    _kernel(unit(bf16, plan, epilogue), epilogue, n).launch(
        device,
        Shape((plan.blocks, 1, 1), (128 * (plan.groups + 1), 1, 1), plan.shared, 1),
        tensor_map(weight, plan.rows), tensor_map(x, fetched), alpha, bias, out,
        *norm_ahead.operands(ahead, eps, leaves), m, n, k, fetched, min(EARLY, plan.stages),
    )  # fmt: skip
