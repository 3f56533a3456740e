"""How packed_wide spreads a 4-bit linear over a Hopper GPU: plans, what they cost, and which is taken. No CUDA.

The cost of a plan is a guess in microseconds from what the kernel must read, decode and multiply; a benchmark tries the
cheapest ones (benchmarks/variants/packed_wide_chains.py). It is not a prediction of how long a product takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from llmrs_cli.kernels.launch import ceil_div
from llmrs_cli.kernels.marlin_layout import UNIT_ROWS, Layout
from llmrs_cli.kernels.wide_plans import MAX_CLUSTER, at_once

FEWEST_TOKENS, MOST_TOKENS = 4, 256
"""Of a product."""
MOST_WARPGROUPS = {16: 4, 32: 4, 64: 3, 96: 3, 128: 2}
"""Of a block, by tokens of its tile: as many as registers hold sums."""
STEPS_OF_TOKENS = (16, 32, 64, 96, 128, 192, 256)
"""Numbers of tokens that share a plan with fewer: few, since each plan is compiled."""
ALL_SHARED, MOST_SHARED = 226 << 10, 210 << 10
"""Bytes of a block: all there are, or so that small kernels find room beside it."""
MOST_STAGES = 8
FACTOR_BYTES = 4 * MOST_TOKENS
"""Of the factors that a norm before the product has on each token's sums."""
PART_ROWS = 16
"""Rows whose squares are left in one sum for the norm that follows."""
EIGHT_BYTES = 8 * UNIT_ROWS * 4
"""Sums of eight tokens and a warpgroup's rows."""
MULTIPLIED, CACHED, READ, CYCLES = 5.5e6, 56e3, 4.2e6, 1.7e3
"""In a microsecond: operations of a multiprocessor's tensor cores, bytes that reach it, bytes that memory gives to all, and
cycles."""
BEGUN, DECODED, SCALED = 150, 180, 2.5
"""Cycles of a step, of each of its warpgroups, and of each token of a warpgroup: as those of the 7B's products of 16 to 64
tokens on an H200, which take turns rather than overlap."""
MEETING = 1.5
"""Microseconds until sums have met, beside what is sent."""


@dataclass(frozen=True, slots=True)
class PackedWidePlan:
    """How one linear is spread."""

    blocks: int
    """Of the grid, whole clusters of `slices`."""
    tokens: int
    """Of a tile."""
    warpgroups: int
    """That multiply, 64 rows each."""
    slices: int = 1
    """Blocks that share the columns of each tile behind the last turn of whole ones."""

    @property
    def spare(self) -> int:
        """Threads of small kernels for which a block leaves registers."""
        return 128 if self.warpgroups < MOST_WARPGROUPS[self.tokens] else 0

    @property
    def sum_bytes(self) -> int:
        """Of the sums that a block gets from the others of its cluster."""
        return self.warpgroups * ceil_div(self.tokens // 8, self.slices) * (self.slices - 1) * EIGHT_BYTES

    def stage_bytes(self, layout: Layout) -> int:
        """Of a step: x and units of W."""
        return ceil_div(self.tokens * 256 + self.warpgroups * layout.unit_bytes, 1024) * 1024

    def stages(self, layout: Layout) -> int:
        """Steps in flight: as many as shared memory holds."""
        room = (MOST_SHARED if self.spare else ALL_SHARED) - 2048 - FACTOR_BYTES - self.sum_bytes
        return min(room // self.stage_bytes(layout), MOST_STAGES)

    def shared_bytes(self, layout: Layout) -> int:
        """Dynamic shared memory of a block: the ring, aligned, sums and barriers."""
        stages = self.stages(layout)
        barriers = 16 * (stages + self.warpgroups) + 16
        return 1024 + stages * self.stage_bytes(layout) + self.sum_bytes + barriers + FACTOR_BYTES

    def tiles(self, layout: Layout, m: int) -> int:
        """Of M tokens and all rows."""
        return ceil_div(layout.unit_rows, self.warpgroups) * ceil_div(m, self.tokens)

    def whole(self, layout: Layout, m: int) -> int:
        """Turns in which each block has a tile of its own, if others follow that are shared."""
        return self.tiles(layout, m) // self.blocks if self.slices > 1 else 0

    def turns(self, layout: Layout, m: int) -> tuple[int, int]:
        """Of a block: turns in all, and those of them that are shared."""
        whole = self.whole(layout, m)
        shared = ceil_div((self.tiles(layout, m) - whole * self.blocks) * self.slices, self.blocks)
        return whole + shared, shared if self.slices > 1 else 0

    def fetched(self, m: int) -> int:
        """Tokens of a step: no more than there are, since those outside come slowly."""
        return min(ceil_div(m, 8) * 8, self.tokens)


def plans(m: int, layout: Layout, multiprocessors: int) -> Iterator[PackedWidePlan]:
    """All that suit M tokens of a linear."""
    most_slices = max(1, min(MAX_CLUSTER, layout.unit_columns // 2))
    sizes = [tokens for tokens in MOST_WARPGROUPS if tokens == 16 or tokens // 2 < m]
    for tokens in sizes:
        for warpgroups in range(1, MOST_WARPGROUPS[tokens] + 1):
            for slices in range(1, most_slices + 1):
                plan = PackedWidePlan(0, tokens, warpgroups, slices)
                clusters = min(plan.tiles(layout, m), at_once(slices, multiprocessors) // slices)
                if clusters:
                    yield replace(plan, blocks=clusters * slices)


def cost(plan: PackedWidePlan, m: int, layout: Layout) -> float:
    """The dearest of memory, cache and what multiplies, turn by turn, then the meeting of slices."""
    turns, shared = plan.turns(layout, m)
    steps = (turns - shared) * layout.unit_columns + shared * ceil_div(layout.unit_columns, plan.slices)
    tile = UNIT_ROWS * plan.warpgroups * plan.tokens
    group = max(UNIT_ROWS * plan.tokens * 256 / MULTIPLIED, (DECODED + SCALED * plan.tokens) / CYCLES)
    step = max(
        BEGUN / CYCLES + plan.warpgroups * group,
        (plan.fetched(m) * 256 + plan.warpgroups * layout.unit_bytes) / CACHED,
        layout.nbytes / READ / steps,
    )
    after = turns * (0.3 + tile / 3e4) + shared * (MEETING + tile / 3e4)
    return steps * step + after + (0.0 if plan.spare else 0.5)


@lru_cache(maxsize=4096)
def plan_for(m: int, layout: Layout, multiprocessors: int) -> PackedWidePlan | None:
    """The plan of M tokens of a linear that should cost least; None where there is none."""
    if not FEWEST_TOKENS <= m <= MOST_TOKENS or layout.rows % 16 or layout.columns % 8:
        return None
    most = next(size for size in STEPS_OF_TOKENS if size >= m)
    found = plans(most, layout, multiprocessors)
    return min(found, key=lambda plan: cost(plan, most, layout), default=None)
