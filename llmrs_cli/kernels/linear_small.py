"""Launcher of linear_small.cu: linears of few tokens at memory speed, norm and epilogue fused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Scalar, Shape
from llmrs_cli.kernels.loader import Unit

Epilogue = Literal["store", "add", "silu", "logits"]
MAX_TOKENS = 16
MAX_NORM_TOKENS = 8
ROW_STRIDE = 4


@dataclass(frozen=True, slots=True)
class SmallPlan:
    """How one linear is spread; `tune` chooses by measurement."""

    blocks: int
    """Blocks of the grid, each with an equal share of W's rows."""
    split: int
    """Warps of a block along K."""
    ahead: int = 0
    """Bytes of W that each block asks the L2 cache for before it waits for the kernel before."""
    warps: int = 8
    tiles: int = 2
    depth: int = 3
    resident: int = 2


def unit(bf16: bool, plan: SmallPlan) -> Unit:
    """The translation unit that serves a plan."""
    shape = (
        ("WARPS", plan.warps),
        ("TILES", plan.tiles),
        ("STEPS_AHEAD", plan.depth),
        ("RESIDENT", plan.resident),
    )
    return Unit("linear_small", (("BF16", int(bf16)), *shape))


def units(bf16: bool) -> tuple[Unit, ...]:
    """The units that `default_plan` uses."""
    return (unit(bf16, SmallPlan(1, 1)),)


def default_plan(n: int, k: int, multiprocessors: int) -> SmallPlan:
    """A plan for (N, K) without measuring."""
    steps = -(-k // 32)
    split = 8
    while split > 1 and steps < 4 * split:
        split //= 2
    return SmallPlan(blocks=min(2 * multiprocessors, -(-n // 8)), split=split)


def linear_small(
    device: Device,
    bf16: bool,
    plan: SmallPlan,
    epilogue: Epilogue,
    weight: Any,
    out: Any,
    *,
    x: Any = None,
    bias: Any = None,
    residual: Any = None,
    norm: Any = None,
    eps: float = 0.0,
    rows: Any = None,
) -> None:
    """out = epilogue(x · Wᵀ + bias) for M ≤ 16 tokens.

    x (M, K) 16-bit; or, for M ≤ 8, RMS norm (`norm` (K,), `eps`) of float32 `residual` (T, K), of the tokens
    `rows` (M,) if given. weight (N, K) 16-bit; bias (N,) float32. `out` is (M, N): 16-bit for "store",
    float32 changed in place for "add", float32 for "logits"; for "silu" weight is (2F, K), gate over up,
    and out (M, F) 16-bit.
    """
    normed = norm is not None
    m, n = out.shape
    k = weight.shape[1]
    tokens = 8 if m <= 8 else MAX_TOKENS
    if m > (MAX_NORM_TOKENS if normed else MAX_TOKENS) or k % 8 or weight.size >= 2**32:
        raise EngineFault(f"linear_small cannot serve {m} tokens of ({n}, {k}).")
    name = f"{'norm_' if normed else ''}linear{tokens}_{epilogue}"
    stride = 16 * plan.tiles + ROW_STRIDE
    shared = plan.warps * tokens * stride * 4
    if normed:
        shared += 32 * (plan.warps + 1) + m * (-(-k // 64) * 64 + 32) * 2
    weight_rows: str | int = 2 * n if epilogue == "silu" else "N"
    kernel = Kernel(
        unit(bf16, plan),
        name,
        (
            Buffer("weight", "u16", (weight_rows, "K")),
            Buffer("x", "u16", ("M", "K"), optional=True),
            Buffer("residual", "f32", ("T", "K"), optional=True),
            Buffer("rows", "i32", ("M",), optional=True),
            Buffer("norm", "f32", ("K",), optional=True),
            Scalar("eps", "f32"),
            Buffer("bias", "f32", (weight_rows,), optional=True),
            Buffer("out", "f32" if epilogue in ("add", "logits") else "u16", ("M", "N")),
            *(Scalar(name, "i32") for name in ("m", "n", "k", "split", "ahead")),
        ),
    )
    kernel.launch(
        device,
        Shape((plan.blocks, 1, 1), (plan.warps * 32, 1, 1), shared),
        weight, x, residual, rows, norm, eps, bias, out, m, n, k, plan.split, plan.ahead,
    )  # fmt: skip
