"""How packed_many spreads a 4-bit linear over a Hopper GPU: plans, what they cost, and which is taken. No CUDA.

Tiles, clusters and bands are those of `many_plans`, to which come warps that widen codes, and a ring of
codes. As there the cost is a guess in microseconds that ranks plans (benchmarks/variants/packed_many.py
measures them) and predicts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

from llmrs_cli.kernels.launch import ceil_div
from llmrs_cli.kernels.many_plans import (
    BOX,
    CLOCK,
    COLUMNS,
    END,
    ENOUGH_STAGES,
    FEWEST_TOKENS,
    FUSED,
    GROUP_TOKENS,
    HEAT,
    L2_READ,
    LINE,
    MOST_BOXES,
    MOST_STAGES,
    SHARED_READ,
    START,
    TILES,
    USUAL_LAG,
    ManyEpilogue,
    ManyPlan,
    Shared,
    planned_tokens,
    spread,
)
from llmrs_cli.kernels.marlin_layout import TILE_COLUMNS, TILE_ROWS, Layout

SHARED_BYTES = (227 << 10) - 1024 - 512
"""Of a block, less what its alignment and its barriers may take."""
MANY_TOKENS = 256
"""Of a tile with so many a step takes long enough that two stages of codes run ahead far enough; else three."""
MOST_ROWS = {1: 192, 2: 176}
"""Of a tile for which registers leave room for a second warpgroup that helps, by its times 64 tokens."""
KINDS: tuple[Shared, ...] = ("tokens", "nothing")
"""What two blocks may share, the better first: rows are widened by each block for itself."""

WIDENED, BETWEEN = 120, 150
"""Cycles of a warp for half a tile of codes, and for the barriers of a step."""
FULL = 0.9
"""Of the multiprocessors, at least, that one turn of large tiles must keep busy to be faster than what is replaced."""
SHALLOW = 1.15
"""Times as long as guessed takes a step of warpgroups of 64 tokens, as measured."""


@dataclass(frozen=True, slots=True)
class PackedManyPlan(ManyPlan):
    """How one 4-bit linear is spread."""

    group: int = TILE_COLUMNS
    """G as tiles of codes hold it"""
    helpers: int = 1
    """Warpgroups that fill stages: a warp that starts copies, the others widen"""

    @property
    def wideners(self) -> int:
        """Warps that widen."""
        return 4 * self.helpers - 1

    @property
    def tile_bytes(self) -> int:
        """Of 16 rows and 128 columns."""
        return Layout(self.rows, TILE_COLUMNS, self.group).tile_bytes

    @property
    def code_stages(self) -> int:
        """Runs of 128 columns of codes in flight."""
        return 2 if self.tokens >= MANY_TOKENS else 3

    @property
    def code_bytes(self) -> int:
        """Of all stages of codes."""
        return self.code_stages * self.rows // TILE_ROWS * self.tile_bytes

    @property
    def stages(self) -> int:
        """Steps in flight, as in `ManyPlan`."""
        two, one = (
            min((SHARED_BYTES - self.code_bytes - boxes * self._boxes) // self.stage_bytes, MOST_STAGES)
            for boxes in (2, 1)
        )
        return two if two >= ENOUGH_STAGES else one

    @property
    def room(self) -> int:
        """Bytes for the results of a warp: whole boxes."""
        left = SHARED_BYTES - self.code_bytes - self.stages * self.stage_bytes
        return min(left // self._boxes, MOST_BOXES) * BOX

    @property
    def _boxes(self) -> int:
        """Bytes of one box for each warp that multiplies."""
        return 4 * self.groups * BOX

    @property
    def shared_bytes(self) -> int:
        """Of a block: the ring, aligned, results, codes, barriers."""
        barriers = 8 * (2 * self.stages + self.wideners * self.code_stages)
        results = 4 * self.groups * self.room
        return 1024 + self.stages * self.stage_bytes + results + self.code_bytes + barriers


def helpers_of(tile: tuple[int, int, int]) -> tuple[int, ...]:
    """How many warpgroups may help beside those of a tile: (warpgroups, times 64 tokens, rows)."""
    groups, deep, rows = tile
    return (1, 2) if groups == 2 and rows <= MOST_ROWS[deep] else (1,)


def plans(
    m: int, layout: Layout, multiprocessors: int, lags: Iterable[int] = (USUAL_LAG,)
) -> Iterator[PackedManyPlan]:
    """All that suit M tokens of a 4-bit linear."""
    for tile, shared, lag in product(TILES, KINDS, lags):
        plan = spread(m, layout.rows, tile, shared, lag, multiprocessors)
        for helpers in helpers_of(tile) if plan.blocks else ():
            yield PackedManyPlan(plan.blocks, *tile, shared, lag, plan.band, layout.group, helpers)


def cost(plan: PackedManyPlan, m: int, n: int, k: int) -> float:
    """A guess in microseconds; see above."""
    turns = ceil_div(plan.items(m, n) * plan.cluster, plan.blocks)
    tile, parts = plan.tokens * plan.rows, plan.groups * plan.deep
    codes = plan.code_bytes / plan.code_stages / 2
    read = parts * (GROUP_TOKENS + plan.rows) * LINE
    brought = (plan.brought_tokens * LINE + codes) / L2_READ
    step = HEAT * brought + max(
        tile * COLUMNS / FUSED,
        (plan.stage_bytes + read + 2 * codes) / SHARED_READ,
        brought,
        ceil_div(plan.rows // TILE_ROWS, plan.wideners) * WIDENED + BETWEEN,
    )
    step *= SHALLOW if plan.deep == 1 else 1.0
    after = tile * END * (0.5 if plan.lag else 1.0)
    return (START + turns * (ceil_div(k, COLUMNS) * step + after)) / CLOCK


@lru_cache(maxsize=4096)
def plan_for(m: int, layout: Layout, multiprocessors: int) -> PackedManyPlan | None:
    """The plan of M tokens of a 4-bit linear that should cost least; None where there is none."""
    n, k = layout.rows, layout.columns
    if m < FEWEST_TOKENS or n % 16 or k % 8:
        return None
    best = _cheapest(planned_tokens(m), layout, multiprocessors)
    if best is None:
        return None
    plan = spread(m, n, best.tile, best.shared, best.lag, multiprocessors)
    return replace(best, blocks=plan.blocks, band=plan.band)


@lru_cache(maxsize=4096)
def _cheapest(m: int, layout: Layout, multiprocessors: int) -> PackedManyPlan | None:
    """The same for as many tokens as are planned: a search that all sizes of one tile share."""
    found = plans(m, layout, multiprocessors)
    return min(found, key=lambda plan: cost(plan, m, layout.rows, layout.columns), default=None)


def chosen(m: int, layout: Layout, epilogue: str, multiprocessors: int) -> PackedManyPlan | None:
    """`plan_for`, where it was measured to be faster than 16-bit slabs and cuBLASLt: with SiLU·mul inside, or where one
    turn of large tiles fills the GPU."""
    plan = plan_for(m, layout, multiprocessors)
    if plan is None or epilogue == "silu":
        return plan
    one_turn = plan.items(m, layout.rows) * plan.cluster == plan.blocks
    return plan if plan.deep == 2 and one_turn and plan.blocks >= FULL * multiprocessors else None


def plans_ahead(
    sizes: Iterable[int], linears: Iterable[tuple[Layout, ManyEpilogue]], multiprocessors: int
) -> Iterator[tuple[PackedManyPlan, ManyEpilogue]]:
    """All that is `chosen` for so many tokens of 4-bit linears (layout, what follows), each with what follows."""
    found = (
        (chosen(m, layout, epilogue, multiprocessors), epilogue)
        for (layout, epilogue), m in product(linears, sizes)
    )
    yield from dict.fromkeys((plan, epilogue) for plan, epilogue in found if plan is not None)
