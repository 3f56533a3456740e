"""Launcher of packed_wide.cu: linears of some tokens and 4-bit weights on Hopper, epilogue fused."""

from __future__ import annotations

from functools import cache
from typing import Any

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels import norm_ahead
from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Map, Scalar, Shape
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.loader import Unit
from llmrs_cli.kernels.marlin_layout import Layout
from llmrs_cli.kernels.norm_ahead import Ahead
from llmrs_cli.kernels.packed4 import EPILOGUES, Packed4Matrix, units_buffer
from llmrs_cli.kernels.packed_wide_plans import MOST_TOKENS, PART_ROWS, PackedWidePlan
from llmrs_cli.kernels.tensor_map import tensor_map

EARLY = 6
"""Steps of weights, at most, that a block asks for before it waits for the kernel before; what it reads of that one returns
after them. Measured on an H200."""


def unit(bf16: bool, layout: Layout, plan: PackedWidePlan, epilogue: Epilogue) -> Unit:
    """The translation unit that serves a plan."""
    sizes = (
        ("WGS", plan.warpgroups),
        ("TOKENS", plan.tokens),
        ("STAGES", plan.stages(layout)),
        ("SLICES", plan.slices),
        ("SPARE", plan.spare),
        ("EPILOGUE", EPILOGUES.index(epilogue)),
    )
    return Unit("packed_wide", (("BF16", int(bf16)), ("GROUP", layout.group), *sizes))


@cache
def _kernel(source: Unit, epilogue: Epilogue, n: int, unit_words: int) -> Kernel:
    wide = epilogue in ("add", "logits")
    return Kernel(
        source,
        "packed_wide",
        (
            units_buffer(unit_words),
            Map("x"),
            Scalar("alpha", "f32"),
            Buffer("bias", "f32", (n,), optional=True),
            Buffer("out", "f32" if wide else "u16", ("M", n // 2 if epilogue == "silu" else n)),
            *norm_ahead.params(n),
            *(Scalar(name, "i32") for name in ("m", "n", "k", "whole", "fetched", "early")),
        ),
    )


def packed_wide(
    device: Device,
    bf16: bool,
    plan: PackedWidePlan,
    epilogue: Epilogue,
    weight: Packed4Matrix,
    out: Any,
    *,
    x: Any,
    bias: Any = None,
    alpha: float = 1.0,
    ahead: Ahead | None = None,
    eps: float = 0.0,
    leaves: Ahead | None = None,
) -> None:
    """out = epilogue(alpha · x · Wᵀ + bias): x (M, K) 16-bit; N a multiple of 16, K one of 8; the rest as in `linear_small`,
    `ahead` and `leaves` as in `linear_wide`.
    """
    layout, m = weight.layout, len(out)
    n, k = layout.rows, layout.columns
    if n % 16 or k % 8 or x.shape != (m, k):
        raise EngineFault(f"packed_wide cannot serve {tuple(x.shape)} tokens for {m} of ({n}, {k}).")
    if plan.blocks % plan.slices or plan.slices > layout.unit_columns:
        raise EngineFault(f"packed_wide has no place for {m} tokens of ({n}, {k}) in {plan}.")
    if ahead is not None and m > MOST_TOKENS:
        raise EngineFault(f"packed_wide has no room for the factors of {m} tokens.")
    norm_ahead.check("packed_wide", epilogue, n // PART_ROWS, ahead, leaves)
    fetched = plan.fetched(m)
    _kernel(unit(bf16, layout, plan, epilogue), epilogue, n, layout.unit_bytes // 4).launch(
        device,
        Shape((plan.blocks, 1, 1), (128 * (plan.warpgroups + 1), 1, 1), plan.shared_bytes(layout), at_once=1),
        weight.units, tensor_map(x, fetched), alpha, bias, out,
        *norm_ahead.operands(ahead, eps, leaves), m, n, k, plan.whole(layout, m), fetched, EARLY,
    )  # fmt: skip
