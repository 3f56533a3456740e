"""Launcher of packed_small.cu: linears of few tokens and 4-bit weights at memory speed, norm and epilogue fused."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Scalar, Shape, ceil_div
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.loader import Unit
from llmrs_cli.kernels.marlin_layout import TILE_COLUMNS, TILE_ROWS, Layout
from llmrs_cli.kernels.packed4 import EPILOGUES, Packed4Matrix, Scratch, units_buffer

MAX_TOKENS = 8
X_STRIDE = 2 * TILE_COLUMNS + 16
"""Bytes of a token beside its unit."""


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """How one linear is spread over warps that each stream a run of units."""

    blocks: int
    warps: int = 8
    tiles: int = 4
    """16-row tiles below one another in a unit: 2 or 4."""
    stages: int = 3
    """Units in flight for each warp."""
    resident: int = 1
    """Blocks that registers must leave room for on a multiprocessor."""

    def workers(self, layout: Layout) -> int:
        """Warps that have something to do."""
        return min(self.blocks * self.warps, self.columns(layout) * layout.unit_columns)

    def columns(self, layout: Layout) -> int:
        """Columns of units that share their outputs."""
        return ceil_div(layout.rows, TILE_ROWS * self.tiles)


def unit(bf16: bool, group: int, plan: StreamPlan) -> Unit:
    """The translation unit that serves a plan."""
    sizes = {"WARPS": plan.warps, "TILES": plan.tiles, "STAGES": plan.stages, "RESIDENT": plan.resident}
    return Unit("packed_small", (("BF16", int(bf16)), ("GROUP", group), *sizes.items()))


def shared_bytes(plan: StreamPlan, layout: Layout, m: int, normed: bool) -> int:
    """Dynamic shared memory of a block: the rings, and normalised tokens."""
    slot = plan.tiles * layout.tile_bytes + (0 if normed else m * X_STRIDE)
    row = 2 * (layout.unit_columns * TILE_COLUMNS + 8)
    return plan.warps * plan.stages * slot + (32 * (plan.warps + 1) + m * row if normed else 0)


def scratch_sizes(plan: StreamPlan, layout: Layout) -> tuple[int, int]:
    """Elements of `Scratch.partials` and `Scratch.arrivals`."""
    return 2 * plan.workers(layout) * TILE_ROWS * plan.tiles * MAX_TOKENS, plan.columns(layout)


@cache
def _kernel(source: Unit, wide: bool, halved: bool, unit_words: int) -> Kernel:
    return Kernel(
        source,
        "packed_small",
        (
            units_buffer(unit_words),
            Buffer("x", "u16", ("M", "K"), optional=True),
            Buffer("residual", "f32", ("T", "K"), optional=True),
            Buffer("rows", "i32", ("M",), optional=True),
            Buffer("norm", "f32", ("K",), optional=True),
            Scalar("eps", "f32"),
            Scalar("alpha", "f32"),
            Buffer("bias", "f32", ("N",), optional=True),
            Buffer("out", "f32" if wide else "u16", ("M", "F" if halved else "N")),
            Buffer("partials", "f32", ("partials",)),
            Buffer("arrivals", "i32", ("arrivals",)),
            *(Scalar(name, "i32") for name in ("m", "n", "k")),
            Scalar("workers", "u32"),
            Scalar("epilogue", "i32"),
        ),
    )


def packed_small(
    device: Device,
    bf16: bool,
    plan: StreamPlan,
    epilogue: Epilogue,
    weight: Packed4Matrix,
    out: Any,
    scratch: Scratch,
    *,
    x: Any = None,
    bias: Any = None,
    residual: Any = None,
    norm: Any = None,
    eps: float = 0.0,
    rows: Any = None,
    alpha: float = 1.0,
) -> None:
    """out = epilogue(alpha · x · Wᵀ + bias) for M ≤ 8 tokens; arguments as those of `linear_small`.

    `scratch` has at least `scratch_sizes` elements; its arrivals are zero before and after.
    """
    normed, m, layout = norm is not None, out.shape[0], weight.layout
    n, k = layout.rows, layout.columns
    if m > MAX_TOKENS or k % 8:
        raise EngineFault(f"packed_small cannot serve {m} tokens of ({n}, {k}).")
    workers = plan.workers(layout)
    scratch.check(*scratch_sizes(plan, layout))
    if (plan.columns(layout) * layout.unit_columns + 1) * (workers + 1) >= 2**32:
        raise EngineFault(f"packed_small cannot spread ({n}, {k}) over {workers} warps.")
    wide, halved = epilogue in ("add", "logits"), epilogue == "silu"
    _kernel(unit(bf16, layout.group, plan), wide, halved, layout.unit_bytes // 4).launch(
        device,
        Shape(
            (ceil_div(workers, plan.warps), 1, 1),
            (plan.warps * 32, 1, 1),
            shared_bytes(plan, layout, m, normed),
        ),
        weight.units, x, residual, rows, norm, eps, alpha, bias, out, scratch.partials, scratch.arrivals,
        m, n, k, workers, EPILOGUES.index(epilogue),
    )  # fmt: skip
