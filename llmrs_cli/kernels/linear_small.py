"""Launcher of linear_small.cu: linears of few tokens at memory speed, norm and epilogue fused."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Scalar, Shape, ceil_div
from llmrs_cli.kernels.loader import Unit

Epilogue = Literal["store", "add", "silu", "logits"]
MAX_TOKENS = 16
MAX_NORM_TOKENS = 8
"""With the norm fused."""
MAX_ROWS = 300_000
"""Rows of W: their product with the number of passes must fit 32 bits."""
ROW_PADDING = 4
"""Floats between the partial sums of two tokens, against bank conflicts."""
DEEP, SHALLOW = 6, 3
"""Steps in flight, on GPUs with much and little shared memory."""
DEEP_SHARED = 160 << 10
MANY_VALUES = 40_000_000
"""Of a matrix that takes longer to read than what else a kernel does."""


@dataclass(frozen=True, slots=True)
class SmallPlan:
    """How one linear is spread."""

    blocks: int
    """Blocks of the grid, each with an equal share of W's rows."""
    split: int
    """Warps of a block along K."""
    warps: int = 8
    tiles: int = 2
    """16-row tiles of a warp's pass."""
    depth: int = DEEP
    """Steps in flight."""
    resident: int = 3
    """Blocks that registers must leave room for on a multiprocessor."""
    held: int = 8
    """Turns whose sums wait before the warps of a block meet, at most: 8 tokens' worth fit."""
    at_once: int = 1
    """Blocks that a multiprocessor may hold, as in `launch.Shape`."""

    def holds(self, m: int) -> int:
        """Turns of M tokens whose sums wait."""
        return max(1, min(self.held, _padded(m) // m))


def _padded(m: int) -> int:
    """Tokens that a kernel computes."""
    return 8 if m <= 8 else MAX_TOKENS


def unit(bf16: bool, plan: SmallPlan) -> Unit:
    """The translation unit that serves a plan."""
    shape = (
        ("WARPS", plan.warps),
        ("TILES", plan.tiles),
        ("STEPS_AHEAD", plan.depth),
        ("RESIDENT", plan.resident),
    )
    return Unit("linear_small", (("BF16", int(bf16)), *shape))


def shared_bytes(plan: SmallPlan, m: int, k: int, normed: bool) -> int:
    """Dynamic shared memory of a block: partial sums, the ring, and normalised tokens."""
    partial = plan.warps * plan.holds(m) * m * (16 * plan.tiles + ROW_PADDING) * 4
    ring = plan.warps * plan.depth * (plan.tiles * 1024 + (0 if normed else m * 64))
    return partial + ring + (32 * (plan.warps + 1) + m * (ceil_div(k, 64) * 64 + 32) * 2 if normed else 0)


def passes(plan: SmallPlan, n: int, together: int) -> tuple[int, int]:
    """Turns of each warp over the rows, and rows of one pass in units of `together` that stay so, times 2³²."""
    workers = plan.blocks * (plan.warps // plan.split)
    turns = ceil_div(n, workers * 16 * plan.tiles)
    return turns, (n // together << 32) // (turns * workers)


def fits(plan: SmallPlan, m: int, k: int, shared_limit: int) -> bool:
    """Whether a block has room for M normalised tokens beside its ring."""
    return shared_bytes(plan, m, k, normed=True) <= shared_limit


def units(bf16: bool, deep: bool) -> tuple[Unit, ...]:
    """The unit that `default_plan` uses, on a GPU with much shared memory (`deep`) or little."""
    return (unit(bf16, SmallPlan(1, 1, depth=DEEP if deep else SHALLOW)),)


def default_plan(n: int, k: int, multiprocessors: int, shared_limit: int) -> SmallPlan:
    """A plan for (N, K) without measuring: one block a multiprocessor, all its warps along K.

    `shared_limit` is what a block may take; where that is little, fewer copies are in flight.
    """
    split = 8
    while split > 1 and -(-k // 32) < 2 * split:
        split //= 2
    depth = DEEP if shared_limit >= DEEP_SHARED else SHALLOW
    return SmallPlan(blocks=min(multiprocessors, -(-n // 8)), split=split, depth=depth)


def early_steps(m: int, normed: bool, n: int, k: int, depth: int) -> int:
    """Steps of weights, of `depth` in flight, that an (N, K) product asks for before it waits for the kernel before it.

    What it reads of that one returns after them. So they are few where it begins late, and all where it has long to wait,
    behind an attention, reads many tokens, or so many weights that these decide. Measured on an H200.
    """
    if normed:
        return depth if m > 1 else depth // 3
    return depth if m > 1 or k <= n or n * k >= MANY_VALUES else depth // 2


@cache
def product_kernel(source: Unit, name: str, epilogue: Epilogue, n: int) -> Kernel:
    """A kernel of linear.cuh's signature over (N, K) weights."""
    out = "f32" if epilogue in ("add", "logits") else "u16"
    return Kernel(
        source,
        name,
        (
            Buffer("weight", "u16", (n, "K")),
            Buffer("x", "u16", ("M", "K"), optional=True),
            Buffer("residual", "f32", ("T", "K"), optional=True),
            Buffer("norm", "f32", ("K",), optional=True),
            Scalar("eps", "f32"),
            Scalar("alpha", "f32"),
            Buffer("bias", "f32", (n,), optional=True),
            Buffer("out", out, ("M", n // 2 if epilogue == "silu" else n)),
            *(Scalar(name, "i32") for name in ("m", "n", "k", "split_log", "turns", "held", "early")),
            Scalar("share", "u64"),
        ),
    )


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
    alpha: float = 1.0,
) -> None:
    """out = epilogue(alpha · x · Wᵀ + bias) for M ≤ 16 tokens.

    x (M, K) 16-bit; or, for M ≤ 8, RMS norm (`norm` (K,), `eps`) of float32 `residual` (M, K). weight (N, K)
    16-bit; bias (N,) float32. `out` is (M, N): 16-bit for "store", float32 changed in place for "add", float32 for
    "logits"; for "silu" weight is (2F, K), 8 rows of gate and 8 of up in turn, and out (M, F) 16-bit, times
    `silu_mul.headroom`.
    """
    normed = norm is not None
    m = out.shape[0]
    n, k = weight.shape
    if m > (MAX_NORM_TOKENS if normed else MAX_TOKENS) or k % 8 or weight.size >= 2**32 or n > MAX_ROWS:
        raise EngineFault(f"linear_small cannot serve {m} tokens of ({n}, {k}).")
    name = f"{'norm_' if normed else ''}linear{_padded(m)}_{epilogue}"
    if plan.tiles > 2 * plan.split:
        raise EngineFault(
            f"linear_small has too few warps along K to add up {16 * plan.tiles} rows at a time."
        )
    turns, share = passes(plan, n, 16 if epilogue == "silu" else 1)
    shared = shared_bytes(plan, m, k, normed)
    early = early_steps(m, normed, n, k, plan.depth)
    product_kernel(unit(bf16, plan), name, epilogue, n).launch(
        device,
        Shape((plan.blocks, 1, 1), (plan.warps * 32, 1, 1), shared, plan.at_once),
        weight, x, residual, norm, eps, alpha, bias, out, m, n, k,
        plan.split.bit_length() - 1, turns, plan.holds(m), early, share,
    )  # fmt: skip
