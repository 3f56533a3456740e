"""Launcher of packed_small.cu: linears of few tokens and 4-bit weights at memory speed, norm and epilogue fused."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Scalar, Shape, ceil_div
from llmrs_cli.kernels.linear_small import MAX_ROWS, ROW_PADDING, Epilogue, early_steps
from llmrs_cli.kernels.loader import Unit
from llmrs_cli.kernels.marlin_layout import TILE_COLUMNS, TILE_ROWS, Layout
from llmrs_cli.kernels.packed4 import EPILOGUES, Packed4Matrix, units_buffer

MAX_TOKENS = 8
X_STRIDE = 2 * TILE_COLUMNS + 16
"""Bytes of a token beside the weights of a step."""


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """How one linear is spread over blocks that take turns at W, and over the warps of each."""

    blocks: int
    """Blocks of the grid, one a multiprocessor, if W has as many tiles of rows."""
    warps: int = 12
    tiles: int = 2
    """16-row tiles below one another in a turn of a block."""
    stages: int = 2
    """Steps in flight for each warp."""
    room: int = 160 << 10
    """Bytes of shared memory that sums which wait may fill a block up to."""

    def grid(self, layout: Layout) -> int:
        """Blocks that have something to do."""
        return min(self.blocks, ceil_div(layout.rows, TILE_ROWS))

    def spread(self, layout: Layout) -> tuple[int, int]:
        """Turns of all blocks, and tiles of the run of each block after them, times 2³²."""
        tiles, blocks = ceil_div(layout.rows, TILE_ROWS), self.grid(layout)
        turns = tiles // (blocks * self.tiles)
        return turns, ceil_div((tiles - turns * blocks * self.tiles) << 32, blocks)

    def held(self, layout: Layout, m: int, normed: bool) -> int:
        """Turns whose sums wait before the warps of a block meet."""
        turns = ceil_div(layout.rows, TILE_ROWS * self.tiles * self.grid(layout))
        return max(1, min(turns, (self.room - self._fixed_bytes(layout, m, normed)) // self._turn_bytes(m)))

    def shared_bytes(self, layout: Layout, m: int, normed: bool) -> int:
        """Dynamic shared memory of a block: the rings, sums that wait, and tokens that stand there whole."""
        return self._fixed_bytes(layout, m, normed) + self.held(layout, m, normed) * self._turn_bytes(m)

    def _fixed_bytes(self, layout: Layout, m: int, normed: bool) -> int:
        rings = self.warps * self.stages * self.tiles * layout.tile_bytes
        if not normed:
            return rings + self.warps * self.stages * m * X_STRIDE
        padded = m * 2 * (layout.unit_columns * TILE_COLUMNS + 8)
        return rings + 32 * (self.warps + 1) + 4 * layout.columns + padded

    def _turn_bytes(self, m: int) -> int:
        return 4 * self.warps * m * (TILE_ROWS * self.tiles + ROW_PADDING)


def unit(bf16: bool, group: int, plan: StreamPlan) -> Unit:
    """The translation unit that serves a plan."""
    sizes = {"WARPS": plan.warps, "TILES": plan.tiles, "STAGES": plan.stages}
    return Unit("packed_small", (("BF16", int(bf16)), ("GROUP", group), *sizes.items()))


@cache
def _kernel(source: Unit, wide: bool, halved: bool, unit_words: int) -> Kernel:
    return Kernel(
        source,
        "packed_small",
        (
            units_buffer(unit_words),
            Buffer("x", "u16", ("M", "K"), optional=True),
            Buffer("residual", "f32", ("T", "K"), optional=True),
            Buffer("norm", "f32", ("K",), optional=True),
            Scalar("eps", "f32"),
            Scalar("alpha", "f32"),
            Buffer("bias", "f32", ("N",), optional=True),
            Buffer("out", "f32" if wide else "u16", ("M", "F" if halved else "N")),
            *(Scalar(name, "i32") for name in ("m", "n", "k", "whole", "held", "early", "epilogue")),
            Scalar("share", "u64"),
        ),
    )


def packed_small(
    device: Device,
    bf16: bool,
    plan: StreamPlan,
    epilogue: Epilogue,
    weight: Packed4Matrix,
    out: Any,
    *,
    x: Any = None,
    bias: Any = None,
    residual: Any = None,
    norm: Any = None,
    eps: float = 0.0,
    alpha: float = 1.0,
) -> None:
    """out = epilogue(alpha · x · Wᵀ + bias) for M ≤ 8 tokens; arguments as those of `linear_small`."""
    normed, m, layout = norm is not None, out.shape[0], weight.layout
    n, k = layout.rows, layout.columns
    if m > MAX_TOKENS or k % 8 or n > MAX_ROWS:
        raise EngineFault(f"packed_small cannot serve {m} tokens of ({n}, {k}).")
    turns, share = plan.spread(layout)
    early = early_steps(m, normed, n, k, plan.stages)
    wide, halved = epilogue in ("add", "logits"), epilogue == "silu"
    _kernel(unit(bf16, layout.group, plan), wide, halved, layout.unit_bytes // 4).launch(
        device,
        Shape((plan.grid(layout), 1, 1), (plan.warps * 32, 1, 1), plan.shared_bytes(layout, m, normed), 1),
        weight.units, x, residual, norm, eps, alpha, bias, out, m, n, k,
        turns, plan.held(layout, m, normed), early, EPILOGUES.index(epilogue), share,
    )  # fmt: skip
