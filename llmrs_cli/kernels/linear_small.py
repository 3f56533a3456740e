"""Launcher of linear_small.cu: linears of few tokens at memory speed, norm and epilogue fused."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.bulk_ring import (
    BULK_ROOM,
    LEAST_STEPS,
    MOST_GATHERED,
    X_AHEAD,
    ring_bytes,
    steps_that_fit,
)
from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Map, Scalar, Shape, ceil_div
from llmrs_cli.kernels.loader import Unit
from llmrs_cli.kernels.tensor_map import tensor_map

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
LINE, BOX_UNIT = 128, 1024
"""Bytes of a row of W in a step of `bulk`; a step's bytes are a multiple of this."""
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
    bulk: bool = False
    """Whether the copy engine brings the weights (Hopper): `depth` steps then, or as many as there is room for."""
    late: int = 0
    """Steps of a `bulk` ring that are asked for only after what the kernel before has written."""

    def holds(self, m: int) -> int:
        """Turns of M tokens whose sums wait."""
        return max(1, min(self.held, _padded(m) // m))


def _padded(m: int) -> int:
    """Tokens that a kernel computes."""
    return 8 if m <= 8 else MAX_TOKENS


def unit(bf16: bool, plan: SmallPlan) -> Unit:
    """The translation unit that serves a plan."""
    ahead = (("BULK", 1),) if plan.bulk else (("STEPS_AHEAD", plan.depth), ("RESIDENT", plan.resident))
    return Unit("linear_small", (("BF16", int(bf16)), ("WARPS", plan.warps), ("TILES", plan.tiles), *ahead))


def shared_bytes(plan: SmallPlan, m: int, k: int, normed: bool) -> int:
    """Dynamic shared memory of a block: partial sums, the ring, and normalised tokens; with `bulk` of the least ring."""
    if plan.bulk:
        return _beside_boxes(plan, m, k, normed) + ring_bytes(plan.warps, LEAST_STEPS, 16 * plan.tiles * LINE)
    ring = plan.warps * plan.depth * (plan.tiles * 1024 + (0 if normed else m * 64))
    normed_bytes = 32 * (plan.warps + 1) + m * (ceil_div(k, 64) * 64 + 32) * 2 if normed else 0
    return _partial_bytes(plan, m) + ring + normed_bytes


def _partial_bytes(plan: SmallPlan, m: int) -> int:
    return plan.warps * plan.holds(m) * m * (16 * plan.tiles + ROW_PADDING) * 4


def _beside_boxes(plan: SmallPlan, m: int, k: int, normed: bool) -> int:
    """Shared memory beside a ring of boxes: sums, tokens, and what the ring's start is rounded up by."""
    whole = m * (ceil_div(k, 64) * 64 + 8) * 2
    steps = plan.warps * X_AHEAD * m * (LINE + 16)
    x = 32 * (plan.warps + 1) + whole if normed else whole if whole <= MOST_GATHERED else steps
    return BOX_UNIT + _partial_bytes(plan, m) + x


def box_rows(plan: SmallPlan, n: int, together: int) -> int:
    """Rows of the largest pass."""
    return ceil_div(passes(plan, n, together)[1], 1 << 32) * together


def box_ring(plan: SmallPlan, m: int, n: int, k: int, normed: bool, together: int) -> tuple[int, int]:
    """Steps of a ring of boxes, and the dynamic shared memory of a block that has it."""
    slot, beside = (
        ceil_div(box_rows(plan, n, together) * LINE, BOX_UNIT) * BOX_UNIT,
        _beside_boxes(plan, m, k, normed),
    )
    steps = steps_that_fit(plan.warps, plan.depth, slot, BULK_ROOM - beside)
    return steps, beside + ring_bytes(plan.warps, steps, slot)


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
def product_kernel(source: Unit, name: str, epilogue: Epilogue, n: int, boxes: bool = False) -> Kernel:
    """A kernel of linear.cuh's signature over (N, K) weights, or over their map where they come in boxes."""
    out = "f32" if epilogue in ("add", "logits") else "u16"
    return Kernel(
        source,
        name,
        (
            Map("weight") if boxes else Buffer("weight", "u16", (n, "K")),
            Buffer("x", "u16", ("M", "K"), optional=True),
            Buffer("residual", "f32", ("T", "K"), optional=True),
            Buffer("norm", "f32", ("K",), optional=True),
            Scalar("eps", "f32"),
            Scalar("alpha", "f32"),
            Buffer("bias", "f32", (n,), optional=True),
            Buffer("out", out, ("M", n // 2 if epilogue == "silu" else n)),
            *(Scalar(name, "i32") for name in ("m", "n", "k", "split_log", "turns", "held", "early")),
            Scalar("share", "u64"),
            *((Scalar("depth", "i32"),) if boxes else ()),
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
    together = 16 if epilogue == "silu" else 1
    turns, share = passes(plan, n, together)
    if plan.bulk:
        steps, shared = box_ring(plan, m, n, k, normed, together)
        early, depth = max(0, steps - plan.late), [steps]
        weight = tensor_map(weight, box_rows(plan, n, together))
    else:
        early, depth = early_steps(m, normed, n, k, plan.depth), []
        shared = shared_bytes(plan, m, k, normed)
    product_kernel(unit(bf16, plan), name, epilogue, n, plan.bulk).launch(
        device,
        Shape((plan.blocks, 1, 1), (plan.warps * 32, 1, 1), shared, plan.at_once),
        weight, x, residual, norm, eps, alpha, bias, out, m, n, k,
        plan.split.bit_length() - 1, turns, plan.holds(m), early, share, *depth,
    )  # fmt: skip
