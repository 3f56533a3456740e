"""Launcher of linear_mid.cu: linears of 9 to 256 tokens on tensor cores, work cut evenly among the blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Scalar, Shape, ceil_div
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.loader import Unit

TOKENS = (16, 32, 64, 96, 128, 192, 256)
"""Tokens of one tile; more are several tiles."""
WIDE_TOKENS = 128
"""Of a tile of 256 rows, at most."""
COLUMNS = 64
"""Values of k in one step."""
ALIGNMENT = 1024
"""Of the ring in shared memory, in bytes."""
EPILOGUES: tuple[Epilogue, ...] = ("store", "add", "silu", "logits")
"""In the order of the enumeration in linear.cuh."""


@dataclass(frozen=True, slots=True)
class MidPlan:
    """How a linear is spread: a tile is 16 · warps rows by `tokens` tokens."""

    blocks: int
    """Blocks of the grid, at most as many as there are steps"""
    tokens: int
    warps: int = 8
    stages: int = 4
    resident: int = 1
    """Blocks that registers must leave room for on a multiprocessor"""

    @property
    def rows(self) -> int:
        """Rows of W in a tile."""
        return 16 * self.warps

    @property
    def shared(self) -> int:
        """Dynamic shared memory of a block."""
        return self.stages * (self.rows + self.tokens) * COLUMNS * 2 + ALIGNMENT


@dataclass(frozen=True, slots=True)
class MidScratch:
    """What blocks that share a tile leave for each other."""

    partials: Any
    """(at least 2 · blocks · rows · tokens,) float32"""
    arrivals: Any
    """(at least the tiles,) int32, zeros before and after"""


def unit(bf16: bool, plan: MidPlan) -> Unit:
    """The translation unit that serves a plan."""
    sizes = (
        ("TOKENS", plan.tokens),
        ("WARPS", plan.warps),
        ("STAGES", plan.stages),
        ("RESIDENT", plan.resident),
    )
    return Unit("linear_mid", (("BF16", int(bf16)), *sizes))


def tile_tokens(m: int) -> int:
    """The smallest tile that holds M tokens, else the largest."""
    return next((tokens for tokens in TOKENS if tokens >= m), TOKENS[-1])


def default_plan(
    m: int, n: int, k: int, multiprocessors: int, warps: int = 8, stages: int = 4, even: bool = False
) -> MidPlan:
    """One block a multiprocessor; `warps` are 8 where more would leave too few registers for the tokens.

    `even`: where blocks outnumber tiles, each tile has the same number of them, and some multiprocessors none.
    """
    tokens = tile_tokens(m)
    warps = min(warps, 8) if tokens > WIDE_TOKENS else warps
    tiles, columns = ceil_div(n, 16 * warps) * ceil_div(m, tokens), ceil_div(k, COLUMNS)
    blocks = multiprocessors // tiles * tiles if even and tiles <= multiprocessors else multiprocessors
    return MidPlan(min(blocks, tiles * columns), tokens, warps, stages)


def scratch_sizes(plan: MidPlan, m: int, n: int) -> tuple[int, int]:
    """(partials, arrivals) that a launch needs."""
    tiles = ceil_div(n, plan.rows) * ceil_div(m, plan.tokens)
    return 2 * plan.blocks * plan.rows * plan.tokens, tiles


@cache
def _kernel(source: Unit, epilogue: Epilogue, n: int) -> Kernel:
    out = "f32" if epilogue in ("add", "logits") else "u16"
    return Kernel(
        source,
        "linear_mid_any",
        (
            Buffer("weight", "u16", (n, "K")),
            Buffer("x", "u16", ("M", "K")),
            Scalar("alpha", "f32"),
            Buffer("bias", "f32", (n,), optional=True),
            Buffer("out", out, ("M", n // 2 if epilogue == "silu" else n)),
            Buffer("partials", "f32", ("sums",)),
            Buffer("arrivals", "i32", ("tiles",)),
            *(Scalar(name, "i32") for name in ("m", "n", "k", "epilogue")),
        ),
    )


def linear_mid(
    device: Device,
    bf16: bool,
    plan: MidPlan,
    epilogue: Epilogue,
    weight: Any,
    x: Any,
    out: Any,
    scratch: MidScratch,
    *,
    bias: Any = None,
    alpha: float = 1.0,
) -> None:
    """out = epilogue(alpha · x · Wᵀ + bias), as `linear_small` has it: x (M, K) and weight (N, K) 16-bit."""
    m, (n, k) = len(x), weight.shape
    sums, tiles = scratch_sizes(plan, m, n)
    steps = tiles * ceil_div(k, COLUMNS)
    if k % 8 or plan.blocks > steps or (steps + 1) * plan.blocks >= 2**32:
        raise EngineFault(f"linear_mid cannot serve {m} tokens of ({n}, {k}) with {plan.blocks} blocks.")
    assert scratch.partials.size >= sums and scratch.arrivals.size >= tiles
    _kernel(unit(bf16, plan), epilogue, n).launch(
        device,
        Shape((plan.blocks, 1, 1), (plan.warps * 32, 1, 1), plan.shared),
        weight, x, alpha, bias, out, scratch.partials, scratch.arrivals, m, n, k, EPILOGUES.index(epilogue),
    )  # fmt: skip
