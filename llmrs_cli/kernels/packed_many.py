"""Launcher of packed_many.cu: linears of many tokens and 4-bit weights on Hopper, epilogue fused."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Map, Scalar, Shape
from llmrs_cli.kernels.linear_many import EPILOGUES
from llmrs_cli.kernels.loader import Unit
from llmrs_cli.kernels.many_plans import KINDS, WARP_TOKENS, ManyEpilogue
from llmrs_cli.kernels.packed4 import Packed4Matrix, units_buffer
from llmrs_cli.kernels.packed_many_plans import PackedManyPlan
from llmrs_cli.kernels.tensor_map import tensor_map, written_map


def unit(bf16: bool, plan: PackedManyPlan, epilogue: ManyEpilogue) -> Unit:
    """The translation unit that serves a plan."""
    sizes = (
        ("GROUP", plan.group),
        ("GROUPS", plan.groups),
        ("DEEP", plan.deep),
        ("ROWS", plan.rows),
        ("STAGES", plan.stages),
        ("CODE_STAGES", plan.code_stages),
        ("HELPERS", plan.helpers),
        ("ROOM", plan.room),
        ("PAIR", KINDS.index(plan.shared)),
        ("LAG", plan.lag),
        ("EPILOGUE", EPILOGUES.index(epilogue)),
    )
    return Unit("packed_many", (("BF16", int(bf16)), *sizes))


@cache
def _kernel(source: Unit, n: int, unit_words: int) -> Kernel:
    return Kernel(
        source,
        "packed_many",
        (
            units_buffer(unit_words),
            Map("x"),
            Map("out"),
            Scalar("alpha", "f32"),
            Buffer("bias", "f32", (n,), optional=True),
            *(Scalar(name, "i32") for name in ("m", "n", "k", "band")),
        ),
    )


def packed_many(
    device: Device,
    bf16: bool,
    plan: PackedManyPlan,
    epilogue: ManyEpilogue,
    weight: Packed4Matrix,
    x: Any,
    out: Any,
    *,
    bias: Any = None,
    alpha: float = 1.0,
) -> None:
    """out = epilogue(alpha · x · Wᵀ + bias): W (N, K) as `dequantise` rounds it, the rest as in `linear_many`.

    N is a multiple of 16 and K of 8. Raises EngineFault for other shapes, and for a plan that does not suit
    them.
    """
    layout, m = weight.layout, len(x)
    n, k = layout.rows, layout.columns
    if k % 8 or n % 16 or x.shape != (m, k):
        raise EngineFault(f"packed_many cannot serve {tuple(x.shape)} tokens of ({n}, {k}).")
    fits = plan.blocks % plan.cluster == 0 and plan.blocks <= plan.items(m, n) * plan.cluster
    if not fits or plan.group != layout.group or plan.shared == "rows":
        raise EngineFault(f"packed_many has no place for {m} tokens of ({n}, {k}) in {plan}.")
    _check("x", x, (m, k), 2)
    _check("out", out, (m, n // 2 if epilogue == "silu" else n), 4 if epilogue == "add" else 2)
    _kernel(unit(bf16, plan, epilogue), n, layout.unit_bytes // 4).launch(
        device,
        Shape((plan.blocks, 1, 1), (128 * (plan.groups + plan.helpers), 1, 1), plan.shared_bytes, 1),
        weight.units, tensor_map(x, plan.brought_tokens), written_map(out, WARP_TOKENS, plan.width(epilogue)),
        alpha, bias, m, n, k, plan.band,
    )  # fmt: skip


def _check(name: str, array: Any, shape: tuple[int, int], size: int) -> None:
    """The copy engine would take any address."""
    kind = np.dtype(np.uint16 if size == 2 else np.float32)
    if array.dtype != kind or array.shape != shape or not array.flags.c_contiguous:
        found = f"{array.dtype} {tuple(array.shape)}"
        raise EngineFault(f"Kernel packed_many: {name} must be contiguous {kind} {shape}, not {found}.")
