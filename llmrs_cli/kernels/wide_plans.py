"""How linear_wide spreads a linear over the GPU: plans, what they cost, and which is taken. No CUDA.

The cost of a plan is a guess in microseconds whose constants were fitted to layers measured on an H200, where its choice was
within 1 % of the best plan of a layer's time on average (benchmarks/variants/wide.py). It is not a prediction of how
long a product takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from llmrs_cli.kernels.launch import ceil_div

GROUP_TOKENS = 64
"""Tokens of one warpgroup."""
COLUMNS = 64
"""Of K in a step."""
MAX_CLUSTER = 8
MOST_TOKENS = 256
"""Of a product that is not cuBLASLt's."""
MOST_PARTS = 128
"""Sums of squares of a token, about: no more than there are blocks."""
FEW, FEW_OF_BROAD, NARROW = 2, 8, 1024
"""Tokens up to which `linear_rows` and `linear_small` are faster: of any matrix, of one that is not narrow. A narrow one
has at most so many rows or columns, as all of a small model have: a layer's products go one way, since norms do."""
Room = Literal["all", "most", "more"]
"""Of a multiprocessor, that a block takes: all of it; most of its memory but half of its registers, so that small kernels
find room beside it; or more than half, so that of this kernel it is alone there, and there is room for others."""
MOST_ROWS: dict[Room, dict[int, int]] = {
    "all": {1: 192, 2: 192, 3: 176},
    "most": {1: 176, 2: 80},
    "more": {1: 176, 2: 80},
}
"""Of a tile, by warpgroups: as many as registers hold sums."""
SLICED: dict[tuple[Room, int], tuple[int, int]] = {("all", 3): (128, 5), ("more", 2): (64, MAX_CLUSTER)}
"""Rows and slices at most, where K is cut and registers hold less: what meets needs some of them."""
SHARED: dict[Room, int] = {"all": 227 << 10, "most": 210 << 10, "more": 118 << 10}
"""Bytes of a block."""
MOST_STAGES = 12
LARGE, WASTED = 12_000_000, frozenset((*range(129, 177), *range(193, MOST_TOKENS + 1)))
"""Values of a matrix from which on the tensor cores decide, and the tokens that fill their tiles worse than cuBLASLt's."""
TURN, LATE = 20.0, {"all": 0.8, "most": 0.6, "more": 0.0}
"""Microseconds that count against another turn, and against blocks that need much room."""
ON_132 = {1: 132, 2: 132, 3: 117, 4: 120, 5: 110, 6: 102, 7: 105, 8: 120}
"""Blocks at once by the size of their cluster, which stays within a part of the GPU, as the driver says of an H200."""


@dataclass(frozen=True, slots=True)
class WidePlan:
    """How one linear is spread."""

    blocks: int
    """Of the grid, whole clusters of `slices`."""
    groups: int
    """Warpgroups that multiply, 64 tokens each."""
    rows: int
    """Of W in a tile, a multiple of 16."""
    slices: int = 1
    """Blocks that share the columns of a tile; each then has one tile, and `blocks` is theirs."""
    room: Room = "all"

    @property
    def stage_bytes(self) -> int:
        return (GROUP_TOKENS * self.groups + self.rows) * 2 * COLUMNS

    @property
    def stages(self) -> int:
        """Steps in flight: as many as shared memory holds."""
        return min((SHARED[self.room] - 2048) // self.stage_bytes, MOST_STAGES)

    @property
    def shared(self) -> int:
        """Bytes of a block: the ring, aligned."""
        return self.stages * self.stage_bytes + 1024

    def tiles(self, m: int, n: int) -> int:
        """Tiles of M tokens and N rows."""
        return ceil_div(n, self.rows) * ceil_div(m, GROUP_TOKENS * self.groups)

    def parts(self, n: int) -> int:
        """Sums of squares that a token's N new values leave."""
        return ceil_div(n, self.rows) * self.slices

    def fetched(self, m: int) -> int:
        """Tokens of a step: no more than there are, since those outside come slowly."""
        return min(ceil_div(m, 8) * 8, GROUP_TOKENS * self.groups)


def at_once(slices: int, multiprocessors: int) -> int:
    """Blocks that run at the same time, in whole clusters."""
    return ON_132[slices] * multiprocessors // 132 // slices * slices


def plans(m: int, n: int, k: int, multiprocessors: int) -> Iterator[WidePlan]:
    """All that suit M tokens of an (N, K) linear."""
    for room, most in MOST_ROWS.items():
        for groups, limit in most.items():
            for rows in range(64, limit + 1, 16) if groups <= ceil_div(m, GROUP_TOKENS) else ():
                yield from _cut(WidePlan(at_once(1, multiprocessors), groups, rows, 1, room), m, n, k)


def _cut(plan: WidePlan, m: int, n: int, k: int) -> Iterator[WidePlan]:
    """A plan with each number of slices, where it has room and work for all."""
    if plan.stages < 2:
        return
    if plan.room != "more":
        yield plan
    rows, most = SLICED.get((plan.room, plan.groups), (plan.rows, MAX_CLUSTER))
    for slices in range(2, most + 1) if plan.room != "most" and plan.rows <= rows else ():
        blocks = plan.tiles(m, n) * slices
        if blocks <= at_once(slices, plan.blocks) and slices <= ceil_div(k, 2 * COLUMNS):
            yield replace(plan, blocks=blocks, slices=slices)


def cost(plan: WidePlan, m: int, n: int, k: int) -> float:
    """The dearest of memory, cache and tensor core, turn by turn, then the meeting of slices and what follows."""
    turns = ceil_div(plan.tiles(m, n) * plan.slices, plan.blocks)
    steps = ceil_div(ceil_div(k, COLUMNS), plan.slices)
    tile = plan.rows * plan.groups * GROUP_TOKENS
    step = max(
        (plan.rows + plan.fetched(m)) * 128 / 83e3, tile * 128 / 6.1e6, n * k * 2 / 4.4e6 / turns / steps
    )
    meeting = 0.1 + tile * 4 / 14e3 if plan.slices > 1 else 0.0
    return turns * (steps * step + TURN + tile / 1e4) + meeting + LATE[plan.room]


@lru_cache(maxsize=4096)
def plan_for(m: int, n: int, k: int, multiprocessors: int) -> WidePlan | None:
    """The plan of M tokens of an (N, K) linear that should cost least; None where there is none, or cuBLASLt is faster."""
    few = FEW if min(n, k) <= NARROW else FEW_OF_BROAD
    if not few < m <= MOST_TOKENS or n % 16 or k % 8 or (n * k > LARGE and m in WASTED):
        return None
    most = ceil_div(m, GROUP_TOKENS) * GROUP_TOKENS  # few plans, since each is compiled
    return min(plans(most, n, k, multiprocessors), key=lambda plan: cost(plan, most, n, k))


def plans_ahead(n: int, k: int, multiprocessors: int) -> Iterator[WidePlan]:
    """All that `plan_for` gives for an (N, K) linear."""
    found = (plan_for(m, n, k, multiprocessors) for m in range(GROUP_TOKENS, MOST_TOKENS + 1, GROUP_TOKENS))
    yield from dict.fromkeys(plan for plan in found if plan is not None)
