"""How linear_many spreads a linear over the GPU: plans, what they cost, and which is taken. No CUDA.

The cost of a plan is a guess in microseconds: turns of a block, times the dearest of what a step of its tile
needs of tensor cores, of shared memory and of L2, and what follows a tile. Its constants are those of the
hardware or estimates; it ranks plans (benchmarks/variants/many.py measures them) and predicts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import inf
from typing import Literal

from llmrs_cli.kernels.launch import ceil_div

ManyEpilogue = Literal["store", "add", "silu"]
Shared = Literal["nothing", "rows", "tokens"]
"""What the tiles of two blocks, a cluster, have in common: each brings half of it to both."""
KINDS: tuple[Shared, ...] = ("nothing", "rows", "tokens")
GROUP_TOKENS, WARP_TOKENS = 64, 16
"""Of one wgmma, and of one of its four warps."""
COLUMNS = 64
"""Of K in a step."""
LINE = 128
"""Bytes of a row in a stage, and of a row of results in a box at most."""
BOX = WARP_TOKENS * LINE
"""Bytes of the largest box in which a warp's results leave."""
SHARED_BYTES = (227 << 10) - 1024 - 128
"""Of a block, less what its alignment and its barriers may take."""
ENOUGH_STAGES, MOST_STAGES, MOST_BOXES = 4, 6, 4
TILES: tuple[tuple[int, int, int], ...] = (
    (2, 1, 256), (2, 1, 240), (2, 1, 224), (2, 1, 208), (2, 1, 192),
    (2, 1, 176), (2, 1, 160), (2, 1, 144), (2, 1, 128),
    (3, 1, 192), (3, 1, 176), (3, 1, 160), (3, 1, 144), (3, 1, 128),
    (2, 2, 192), (2, 2, 176), (2, 2, 160), (2, 2, 144), (2, 2, 128),
)  # fmt: skip
"""Warpgroups, times 64 tokens of each, rows: whose sums registers hold."""
LAGS, USUAL_LAG = (0, 1, 2), 1
"""Steps between warpgroups: more hide more of what follows a tile, and leave fewer stages to run ahead."""
BAND_TOKENS = 2048
"""Of a band, about: with as many rows, what a grid multiplies at the same time."""
LONG_ROWS, LONG_TOKENS = 3072, 1024
"""Of a product with long K from which on it is faster than cuBLASLt's."""
AT_ONCE_TOKENS, AT_ONCE_COLUMNS, AT_ONCE_SHARE = 1025, 3072, 0.8
"""Tokens, K, and the part of the GPU that is busy from which on the largest tiles, all at once and each with
its own operands, are faster than cuBLASLt's, which take two turns."""
FEWEST_TOKENS = 257
"""Fewer are left to `linear_wide`."""
APART: tuple[tuple[float, int], ...] = ((512, 1), (2048, 256), (inf, 2048))
"""Up to so many tokens take the tile of the next multiple of so many: few tiles, since each is compiled."""

CLOCK = 1600.0
"""Cycles of a microsecond, of a GPU whose tensor cores are busy."""
FUSED, SHARED_READ, L2_READ = 2048, 128, 40.0
"""In a cycle of one multiprocessor: multiplications with their sums, bytes of shared memory, and bytes of L2
if all read at once."""
START, END = 3000.0, 1 / 16
"""Cycles before the first products, and of each value of a tile after its last; half of these where
warpgroups lag."""
PAIR_STEP, PAIR_TILE = 1.03, 500.0
"""How much longer two blocks that share take for a step, since each waits for both, and cycles of a tile likewise."""
HEAT = 1 / 8
"""Of the time that bytes from L2 take, where something else takes longer: they cost power, and so the clock. A byte
that two blocks share takes 18 pJ, else 29; a whole product of 2,048 tokens is at the board's 700 W (measured on an
H200)."""


@dataclass(frozen=True, slots=True)
class ManyPlan:
    """How one linear is spread."""

    blocks: int
    """Of the grid: whole clusters, each with a tile at least"""
    groups: int
    """Warpgroups that multiply"""
    deep: int
    """Times 64 tokens of each"""
    rows: int
    """Of W in a tile, a multiple of 16"""
    shared: Shared = "rows"
    lag: int = 1
    """Steps that each warpgroup stays behind the one before"""
    band: int = 8
    """Token tiles of a cluster that are multiplied with all rows before the next"""

    @property
    def tile(self) -> tuple[int, int, int]:
        """Of TILES."""
        return self.groups, self.deep, self.rows

    @property
    def tokens(self) -> int:
        """Of a tile."""
        return GROUP_TOKENS * self.groups * self.deep

    @property
    def cluster(self) -> int:
        """Blocks of one."""
        return 1 if self.shared == "nothing" else 2

    @property
    def stage_bytes(self) -> int:
        return (self.tokens + self.rows) * LINE

    @property
    def stages(self) -> int:
        """Steps in flight: what fits beside two boxes of results for each warp if enough, else beside one."""
        two, one = (
            min((SHARED_BYTES - 4 * self.groups * BOX * boxes) // self.stage_bytes, MOST_STAGES)
            for boxes in (2, 1)
        )
        return two if two >= ENOUGH_STAGES else one

    @property
    def room(self) -> int:
        """Bytes for the results of a warp: whole boxes."""
        left = SHARED_BYTES - self.stages * self.stage_bytes
        return min(left // (4 * self.groups) // BOX, MOST_BOXES) * BOX

    @property
    def shared_bytes(self) -> int:
        """Of a block: the ring, aligned, results, barriers."""
        return 1024 + self.stages * (self.stage_bytes + 16) + 4 * self.groups * self.room

    @property
    def brought_rows(self) -> int:
        """Of a step, by one block."""
        return self.rows // 2 if self.shared == "rows" else self.rows

    @property
    def brought_tokens(self) -> int:
        """Likewise."""
        return self.tokens // 2 if self.shared == "tokens" else self.tokens

    def width(self, epilogue: ManyEpilogue) -> int:
        """Columns of a box of results: long lines; boxes of what is added fill a tile, others may overlap."""
        if epilogue == "add":
            return 32 if self.rows % 32 == 0 else 16
        return 64 if self.rows >= (128 if epilogue == "silu" else 64) else 32

    def items(self, m: int, n: int) -> int:
        """Tiles of a cluster for M tokens and N rows."""
        tokens = self.tokens * (2 if self.shared == "rows" else 1)
        rows = self.rows * (2 if self.shared == "tokens" else 1)
        return ceil_div(m, tokens) * ceil_div(n, rows)


def spread(
    m: int, n: int, tile: tuple[int, int, int], shared: Shared, lag: int, multiprocessors: int
) -> ManyPlan:
    """The plan of a tile: a grid that fills the GPU once, or one tile a block; bands of equal size."""
    plan = ManyPlan(0, *tile, shared, lag)
    down = ceil_div(m, plan.tokens * (2 if shared == "rows" else 1))
    bands = ceil_div(m, BAND_TOKENS)
    clusters = min(multiprocessors // plan.cluster, plan.items(m, n))
    return ManyPlan(clusters * plan.cluster, *tile, shared, lag, ceil_div(down, bands))


def plans(m: int, n: int, multiprocessors: int, lags: Iterable[int] = (USUAL_LAG,)) -> Iterator[ManyPlan]:
    """All that suit M tokens of a linear with N rows."""
    for tile, shared, lag in product(TILES, KINDS, lags):
        plan = spread(m, n, tile, shared, lag, multiprocessors)
        if plan.blocks:
            yield plan


def cost(plan: ManyPlan, m: int, n: int, k: int) -> float:
    """A guess in microseconds; see above."""
    turns = ceil_div(plan.items(m, n) * plan.cluster, plan.blocks)
    tile, parts = plan.tokens * plan.rows, plan.groups * plan.deep
    read = parts * (GROUP_TOKENS + plan.rows) * LINE
    brought = (plan.brought_rows + plan.brought_tokens) * LINE / L2_READ
    step = HEAT * brought + max(tile * COLUMNS / FUSED, (plan.stage_bytes + read) / SHARED_READ, brought)
    after = tile * END * (0.5 if plan.lag else 1.0)
    if plan.cluster > 1:
        step, after = step * PAIR_STEP, after + PAIR_TILE
    return (START + turns * (ceil_div(k, COLUMNS) * step + after)) / CLOCK


def planned_tokens(m: int) -> int:
    """The tokens whose tile M tokens take."""
    apart = next(apart for most, apart in APART if m <= most)
    return ceil_div(m, apart) * apart


@lru_cache(maxsize=4096)
def plan_for(m: int, n: int, k: int, multiprocessors: int, at_once: bool = False) -> ManyPlan | None:
    """The plan of M tokens of an (N, K) linear that should cost least; None where there is none.

    `at_once`: of tiles twice 64 tokens deep that share nothing, all run at once and leave few multiprocessors idle.
    """
    if m < FEWEST_TOKENS or n % 16 or k % 8:
        return None
    best = _cheapest(planned_tokens(m), n, k, multiprocessors, at_once)
    return best and spread(m, n, best.tile, best.shared, best.lag, multiprocessors)


@lru_cache(maxsize=4096)
def _cheapest(m: int, n: int, k: int, multiprocessors: int, at_once: bool) -> ManyPlan | None:
    """The same for as many tokens as are planned: a search that all sizes of one tile share."""

    def fills(plan: ManyPlan) -> bool:
        tiles = plan.items(m, n)
        return plan.deep > 1 and plan.shared == "nothing" and AT_ONCE_SHARE <= tiles / multiprocessors <= 1

    found = (plan for plan in plans(m, n, multiprocessors) if not at_once or fills(plan))
    return min(found, key=lambda plan: cost(plan, m, n, k), default=None)


def chosen(m: int, n: int, k: int, epilogue: str, multiprocessors: int) -> ManyPlan | None:
    """The plan of a product where it was measured to be faster than cuBLASLt: with SiLU·mul inside, where K is
    long and large tiles fill the GPU, or where they do so all at once."""
    if epilogue == "silu" or (epilogue == "add" and k > 2 * n and n >= LONG_ROWS and m >= LONG_TOKENS):
        return plan_for(m, n, k, multiprocessors)
    short = epilogue in ("store", "add") and k >= AT_ONCE_COLUMNS and m >= AT_ONCE_TOKENS
    return plan_for(m, n, k, multiprocessors, at_once=True) if short else None


def plans_ahead(
    sizes: Iterable[int], n: int, k: int, epilogue: str, multiprocessors: int
) -> Iterator[ManyPlan]:
    """All that is `chosen` for an (N, K) linear of so many tokens."""
    found = (chosen(m, n, k, epilogue, multiprocessors) for m in sizes)
    yield from dict.fromkeys(plan for plan in found if plan is not None)
