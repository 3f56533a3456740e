"""Launcher of linear_many.cu: linears of many tokens on Hopper, epilogue fused."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Map, Scalar, Shape
from llmrs_cli.kernels.loader import Unit
from llmrs_cli.kernels.many_plans import KINDS, WARP_TOKENS, ManyEpilogue, ManyPlan
from llmrs_cli.kernels.tensor_map import tensor_map, written_map

EPILOGUES: tuple[ManyEpilogue, ...] = ("store", "add", "silu")


def unit(bf16: bool, plan: ManyPlan, epilogue: ManyEpilogue) -> Unit:
    """The translation unit that serves a plan."""
    sizes = (
        ("GROUPS", plan.groups),
        ("DEEP", plan.deep),
        ("ROWS", plan.rows),
        ("STAGES", plan.stages),
        ("ROOM", plan.room),
        ("PAIR", KINDS.index(plan.shared)),
        ("LAG", plan.lag),
        ("EPILOGUE", EPILOGUES.index(epilogue)),
    )
    return Unit("linear_many", (("BF16", int(bf16)), *sizes))


@cache
def _kernel(source: Unit, n: int) -> Kernel:
    return Kernel(
        source,
        "linear_many",
        (
            Map("weight"),
            Map("x"),
            Map("out"),
            Scalar("alpha", "f32"),
            Buffer("bias", "f32", (n,), optional=True),
            *(Scalar(name, "i32") for name in ("m", "n", "k", "band")),
        ),
    )


def linear_many(
    device: Device,
    bf16: bool,
    plan: ManyPlan,
    epilogue: ManyEpilogue,
    weight: Any,
    x: Any,
    out: Any,
    *,
    bias: Any = None,
    alpha: float = 1.0,
) -> None:
    """out = epilogue(alpha · x · Wᵀ + bias): weight (N, K), x (M, K) 16-bit, N a multiple of 16 and K of 8.

    "store": out (M, N) 16-bit. "add": out (M, N) float32 is added to. "silu": W holds 8 gates and 8 ups in
    turn, out (M, N / 2) 16-bit is silu(gate) · up · headroom (silu_mul.py). bias (N,) float32. W is fetched
    before kernels ahead have ended, so none of them may write it. Raises EngineFault for other shapes, and
    for a plan that does not suit them.
    """
    (m, k), n = x.shape, weight.shape[0]
    if k % 8 or n % 16 or weight.shape[1] != k:
        raise EngineFault(f"linear_many cannot serve {m} tokens of {tuple(weight.shape)}.")
    if plan.blocks % plan.cluster or plan.blocks > plan.items(m, n) * plan.cluster:
        raise EngineFault(f"linear_many has no place for {m} tokens of {tuple(weight.shape)} in {plan}.")
    columns = n // 2 if epilogue == "silu" else n
    _check("weight", weight, (n, k), 2)
    _check("x", x, (m, k), 2)
    _check("out", out, (m, columns), 4 if epilogue == "add" else 2)
    _kernel(unit(bf16, plan, epilogue), n).launch(
        device,
        Shape((plan.blocks, 1, 1), (128 * (plan.groups + 1), 1, 1), plan.shared_bytes, 1),
        tensor_map(weight, plan.brought_rows), tensor_map(x, plan.brought_tokens),
        written_map(out, WARP_TOKENS, plan.width(epilogue)), alpha, bias, m, n, k, plan.band,
    )  # fmt: skip


def _check(name: str, array: Any, shape: tuple[int, int], size: int) -> None:
    """The copy engine would take any address."""
    kind = np.dtype(np.uint16 if size == 2 else np.float32)
    if array.dtype != kind or array.shape != shape or not array.flags.c_contiguous:
        found = f"{array.dtype} {tuple(array.shape)}"
        raise EngineFault(f"Kernel linear_many: {name} must be contiguous {kind} {shape}, not {found}.")
