"""Launcher of packed_large.cu: linears of many tokens and 4-bit weights on the tensor cores, epilogue fused."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Scalar, Shape, ceil_div
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.loader import Unit
from llmrs_cli.kernels.marlin_layout import TILE_ROWS, UNIT_ROWS, Layout
from llmrs_cli.kernels.packed4 import EPILOGUES, Packed4Matrix, units_buffer
from llmrs_cli.kernels.scratch import Scratch

GOOD_SHARE = 0.9
"""Whole tiles are not cut where they keep the blocks busy for so much of the time."""


@dataclass(frozen=True, slots=True)
class TilePlan:
    """How one linear is spread over blocks that each multiply tiles of outputs."""

    blocks: int
    tokens: int
    """Of a tile: 16, 32, 64 or 128."""
    warps: int = 8
    """Of a block, 16 rows each: a multiple of 4."""
    stages: int = 4
    resident: int = 2
    """Blocks that registers must leave room for on a multiprocessor."""

    @property
    def rows(self) -> int:
        """Of a tile."""
        return TILE_ROWS * self.warps

    def tiles(self, layout: Layout, m: int) -> int:
        return ceil_div(layout.rows, self.rows) * ceil_div(m, self.tokens)

    def whole(self, layout: Layout, m: int) -> bool:
        """Whether blocks take whole tiles in turns, since that divides the work well."""
        tiles = self.tiles(layout, m)
        return tiles >= GOOD_SHARE * ceil_div(tiles, self.blocks) * self.blocks

    def workers(self, layout: Layout, m: int) -> int:
        """Blocks that have something to do."""
        units = 1 if self.whole(layout, m) else layout.unit_columns
        return min(self.blocks, self.tiles(layout, m) * units)


def unit(bf16: bool, group: int, plan: TilePlan) -> Unit:
    """The translation unit that serves a plan."""
    sizes = {"WARPS": plan.warps, "TOKENS": plan.tokens, "STAGES": plan.stages, "RESIDENT": plan.resident}
    return Unit("packed_large", (("BF16", int(bf16)), ("GROUP", group), *sizes.items()))


def shared_bytes(plan: TilePlan, layout: Layout) -> int:
    """Dynamic shared memory of a block, of which the ring begins at a multiple of 1,024."""
    stage = plan.tokens * 256 + plan.rows // UNIT_ROWS * layout.unit_bytes
    return plan.stages * ceil_div(stage, 1024) * 1024 + 1024


def scratch_sizes(plan: TilePlan, layout: Layout, m: int) -> tuple[int, int]:
    """Elements of `Scratch.partials` and `Scratch.arrivals`."""
    if plan.whole(layout, m):
        return 0, 0
    return 2 * plan.workers(layout, m) * plan.rows * plan.tokens, plan.tiles(layout, m)


@cache
def _kernel(source: Unit, wide: bool, halved: bool, unit_words: int) -> Kernel:
    return Kernel(
        source,
        "packed_large",
        (
            units_buffer(unit_words),
            Buffer("x", "u16", ("M", "K")),
            Scalar("alpha", "f32"),
            Buffer("bias", "f32", ("N",), optional=True),
            Buffer("out", "f32" if wide else "u16", ("M", "F" if halved else "N")),
            Buffer("partials", "f32", ("partials",)),
            Buffer("arrivals", "i32", ("arrivals",)),
            *(Scalar(name, "i32") for name in ("m", "n", "k")),
            Scalar("workers", "u32"),
            Scalar("whole", "i32"),
            Scalar("epilogue", "i32"),
        ),
    )


def packed_large(
    device: Device,
    bf16: bool,
    plan: TilePlan,
    epilogue: Epilogue,
    weight: Packed4Matrix,
    out: Any,
    scratch: Scratch,
    *,
    x: Any,
    bias: Any = None,
    alpha: float = 1.0,
) -> None:
    """out = epilogue(alpha · x · Wᵀ + bias): x (M, K) 16-bit, the rest as in `linear_small`.

    `scratch` has at least `scratch_sizes` elements; its arrivals are zero before and after.
    """
    m, layout = len(out), weight.layout
    n, k = layout.rows, layout.columns
    workers, whole = plan.workers(layout, m), plan.whole(layout, m)
    scratch.check(*scratch_sizes(plan, layout, m))
    if k % 8 or (plan.tiles(layout, m) * layout.unit_columns + 1) * (workers + 1) >= 2**32:
        raise EngineFault(f"packed_large cannot serve {m} tokens of ({n}, {k}).")
    wide, halved = epilogue in ("add", "logits"), epilogue == "silu"
    _kernel(unit(bf16, layout.group, plan), wide, halved, layout.unit_bytes // 4).launch(
        device,
        Shape((workers, 1, 1), (plan.warps * 32, 1, 1), shared_bytes(plan, layout), plan.resident),
        weight.units, x, alpha, bias, out, scratch.partials, scratch.arrivals, m, n, k, workers, int(whole),
        EPILOGUES.index(epilogue),
    )  # fmt: skip
