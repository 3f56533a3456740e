"""Launcher of linear_rows.cu: linears of one or two tokens, each warp two whole rows at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.launch import Device, Shape, ceil_div
from llmrs_cli.kernels.linear_small import Epilogue, early_steps, product_kernel
from llmrs_cli.kernels.loader import Unit

MAX_TOKENS = 2
CHUNK = 256
"""Values of k in one step of a warp."""
STEP_BYTES = 2 * CHUNK * 2
SLICE_UNIT = 16
"""A warp's slice of K is a multiple of this."""


@dataclass(frozen=True, slots=True)
class RowsPlan:
    """How one linear is spread."""

    blocks: int
    """Blocks of the grid, each with an equal share of W's pairs of rows."""
    split: int
    """Warps of a block along K, a divisor of `warps`."""
    warps: int = 16
    depth: int = 4
    """Steps in flight of a warp, one KiB each."""
    resident: int = 2
    """Blocks that registers must leave room for on a multiprocessor."""
    at_once: int = 1
    """Blocks that a multiprocessor may hold, as in `launch.Shape`."""


MOST_ROWS, MOST_VALUES = 2560, 12_000_000
"""Of matrices that the kernel reads sooner than `linear_small`: it begins and ends sooner, and reads more slowly."""


def suits(m: int, n: int, k: int) -> bool:
    """Whether M tokens of an (N, K) linear are sooner done here than by `linear_small`, as measured on an H200."""
    return m <= MAX_TOKENS and (n <= MOST_ROWS or n * k <= MOST_VALUES)


def unit(bf16: bool, tokens: int, plan: RowsPlan) -> Unit:
    """The translation unit that serves `tokens` (1 or 2) tokens with a plan."""
    sizes = (("WARPS", plan.warps), ("DEPTH", plan.depth), ("RESIDENT", plan.resident))
    return Unit("linear_rows", (("BF16", int(bf16)), ("TOKENS", tokens), *sizes))


def shared_bytes(plan: RowsPlan, m: int, n: int, k: int) -> int:
    """Dynamic shared memory of a block: tokens, the ring, and the sums of all its rows."""
    pairs = ceil_div(ceil_div(n, 2), plan.blocks)
    tokens = m * (ceil_div(k, 64) * 128 + 4 * plan.warps + 4)
    return ceil_div(tokens, 16) * 16 + plan.warps * plan.depth * STEP_BYTES + pairs * 2 * m * plan.split * 4


def balance(plan: RowsPlan, n: int, k: int) -> float:
    """Share of the steps of the busiest warp that do useful work, on average over all warps.

    The sums of a pair over the lanes of a warp cost about half a step.
    """
    pairs = ceil_div(n, 2)
    per_warp = ceil_div(ceil_div(pairs, plan.blocks), plan.warps // plan.split)
    slice_k = ceil_div(k, SLICE_UNIT * plan.split) * SLICE_UNIT
    steps = plan.blocks * plan.warps * per_warp * (ceil_div(slice_k, CHUNK) + 0.5)
    return pairs * k / (steps * CHUNK)


def default_plan(n: int, k: int, multiprocessors: int, warps: int = 16, depth: int = 4) -> RowsPlan:
    """One block a multiprocessor, K split so that every warp has about as much to do."""
    blocks = min(multiprocessors, ceil_div(n, 2))
    splits = [1 << i for i in range(warps.bit_length())]
    plans = [RowsPlan(blocks, split, warps, depth) for split in splits]
    return max(plans, key=lambda plan: round(balance(plan, n, k), 2))


def linear_rows(
    device: Device,
    bf16: bool,
    plan: RowsPlan,
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
    """As `linear_small`, for one or two tokens."""
    m = out.shape[0]
    n, k = weight.shape
    if m > MAX_TOKENS or k % 8 or n % (16 if epilogue == "silu" else 1):
        raise EngineFault(f"linear_rows cannot serve {m} tokens of ({n}, {k}).")
    name = f"{'norm_' if norm is not None else ''}rows_{epilogue}"
    early = early_steps(m, norm is not None, n, k, plan.depth)
    product_kernel(unit(bf16, m, plan), name, epilogue, n).launch(
        device,
        Shape((plan.blocks, 1, 1), (plan.warps * 32, 1, 1), shared_bytes(plan, m, n, k), plan.at_once),
        weight, x, residual, norm, eps, alpha, bias, out, m, n, k,
        plan.split.bit_length() - 1, 0, 0, early, (ceil_div(n, 2) << 32) // plan.blocks,
    )  # fmt: skip
