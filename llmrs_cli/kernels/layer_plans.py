"""How layer_wide spreads the four products between two attentions over a Hopper GPU: plans, their cost, the choice. No CUDA.

The cost of a plan is a guess in microseconds; a benchmark tries the cheapest ones (benchmarks/variants/layer.py). It is not
a prediction of how long a layer takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from llmrs_cli.kernels.launch import ceil_div
from llmrs_cli.kernels.wide_plans import COLUMNS, GROUP_TOKENS, MAX_CLUSTER, at_once

FEWEST_TOKENS, MOST_TOKENS = 9, 192
EIGHT = 8
"""Rows that stay together; twice as many of gate and up."""
LINE = 2 * COLUMNS
"""Bytes of a row or a token in a step."""
FEWEST_ROWS, FEWEST_GATES = 16, 64
"""Of a tile: of a product whose columns are shared out, of gate and up."""
MOST_ROWS, MOST_GATES = 256, {1: 256, 2: 192, 3: 176}
"""Of such tiles: all that there is an instruction for; by warpgroups, as many as registers hold sums."""
SUMS, READ_BEFORE, MOST_HELD = 4, 6, {1: 168, 2: 168, 3: 112}
"""Registers for eight shared rows: their sums, what is read of them before they are written; of both at most, by warpgroups."""
X_STAGES = {1: 4, 2: 3, 3: 3}
"""Steps of tokens in flight, by warpgroups: they come from the cache, fast, so that most room is for weights."""
FEWEST_STAGES, MOST_STAGES = 3, 16
"""Steps of weights in flight."""
SHARED = 227 << 10
"""Bytes of a block."""
READ, CACHED, CACHED_EACH, MULTIPLIED = 4.4e6, 7e6, 83e3, 6.1e6
"""In a microsecond: bytes that memory gives, that the cache gives to all and to one multiprocessor, and sums of the latter's
tensor cores."""
MEETING, SENT = 3.0, 14e3
"""Microseconds from one product's last sums to the next one's first, and values that a block sends in one."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Sizes of the four products; of matrices (rows, columns)."""

    heads: int
    """H: columns of o (C, H)"""
    hidden: int
    """C: of the residual"""
    ffn: int
    """F: of gate and up (2F, C), and of down (C, F)"""
    qkv: int
    """Q: rows of the next layer's qkv (Q, C)"""

    @property
    def products(self) -> tuple[tuple[int, int], ...]:
        """(N, K) of each, in their order."""
        c = self.hidden
        return (c, self.heads), (2 * self.ffn, c), (c, self.ffn), (self.qkv, c)

    @property
    def served(self) -> bool:
        """Whether its sizes are whole vectors and eights."""
        return all(size > 0 and size % EIGHT == 0 for size in (self.heads, self.hidden, self.ffn, self.qkv))


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """How the launch is spread."""

    blocks: int
    """Of the grid, whole clusters of `slices`, all of which run at once."""
    groups: int
    """Warpgroups that multiply, 64 tokens each: the tokens of the launch at most."""
    slices: int
    """Blocks that share the columns of o, down and qkv; a cluster has one tile of each at most."""
    add_rows: int
    """Of a tile of o and of down, a multiple of 8."""
    gate_rows: int
    """Of a tile of gate and up, a multiple of 16; a block takes turns at them."""
    qkv_rows: int
    """Of a tile of qkv, a multiple of 8."""

    @property
    def tokens(self) -> int:
        """That it serves at most."""
        return GROUP_TOKENS * self.groups

    @property
    def x_stages(self) -> int:
        return X_STAGES[self.groups]

    @property
    def weight_bytes(self) -> int:
        """Of a step of weights: room for those of each product."""
        return max(self.add_rows, self.gate_rows, self.qkv_rows) * LINE

    @property
    def sum_bytes(self) -> int:
        """Of the sums that a block gets from the others of its cluster."""
        eights = ceil_div(max(self.add_rows, self.qkv_rows) // EIGHT, self.slices)
        return self.groups * eights * (self.slices - 1) * GROUP_TOKENS * EIGHT * 4

    @property
    def stages(self) -> int:
        """Steps of weights in flight: as many as shared memory holds."""
        room = SHARED - 2048 - self.sum_bytes - self.x_stages * self.tokens * LINE
        return min(room // self.weight_bytes, MOST_STAGES)

    @property
    def shared(self) -> int:
        """Dynamic shared memory of a block: both rings, aligned, sums and barriers."""
        rings = self.stages * self.weight_bytes + self.x_stages * self.tokens * LINE
        return 1024 + rings + self.sum_bytes + 16 * (self.stages + self.x_stages) + 8 * (1 + self.groups)

    def parts(self, hidden: int) -> int:
        """Sums of squares that a token's new residual leaves."""
        return ceil_div(hidden, self.add_rows) * self.slices

    def counts(self, ffn: int) -> int:
        """Words in which blocks meet: one, and one for each turn of gate and up."""
        return 1 + ceil_div(ceil_div(2 * ffn, self.gate_rows), self.blocks)

    def fetched(self, m: int) -> int:
        """Tokens of a step: no more than there are, since those outside come slowly."""
        return min(ceil_div(m, EIGHT) * EIGHT, self.tokens)

    def serves(self, m: int, shape: LayerShape) -> bool:
        """Whether M tokens have room, each cluster one tile of what is shared out, and each slice a step at least."""
        clusters, steps = self.blocks // self.slices, min(shape.heads, shape.hidden, shape.ffn)
        return (
            shape.served
            and self.blocks == clusters * self.slices
            and 1 <= m <= self.tokens
            and self.stages >= FEWEST_STAGES
            and ceil_div(shape.hidden, self.add_rows) <= clusters
            and ceil_div(shape.qkv, self.qkv_rows) <= clusters
            and self.slices <= ceil_div(steps, COLUMNS)
        )


def plans(m: int, shape: LayerShape, multiprocessors: int) -> Iterator[LayerPlan]:
    """All that suit M tokens of a layer."""
    groups = ceil_div(m, GROUP_TOKENS)
    for slices in range(2, MAX_CLUSTER + 1) if groups in X_STAGES else ():
        blocks = at_once(slices, multiprocessors)
        if blocks == 0:
            continue
        add, qkv = (_share(n, blocks // slices) for n in (shape.hidden, shape.qkv))
        if max(add, qkv) > MOST_ROWS or held(max(add, qkv), slices) > MOST_HELD[groups]:
            continue
        for gates in range(FEWEST_GATES, MOST_GATES[groups] + 1, 2 * EIGHT):
            plan = LayerPlan(blocks, groups, slices, add, gates, qkv)
            if plan.serves(m, shape):
                yield plan


def held(rows: int, slices: int) -> int:
    """Registers where the sums of so many rows meet, of which a block writes its share."""
    eights = rows // EIGHT
    return SUMS * eights + READ_BEFORE * ceil_div(eights, slices)


def _share(rows: int, clusters: int) -> int:
    """Rows of a tile with which each cluster has one at most."""
    return max(ceil_div(ceil_div(rows, clusters), EIGHT) * EIGHT, FEWEST_ROWS)


def cost(plan: LayerPlan, m: int, shape: LayerShape) -> float:
    """The dearest of memory, cache and tensor cores, product by product, and what the ring does not bridge where they meet."""
    total, cut = 0.0, plan.slices
    tiles = (plan.add_rows, cut), (plan.gate_rows, 1), (plan.add_rows, cut), (plan.qkv_rows, cut)
    for (n, k), (height, parts) in zip(shape.products, tiles, strict=True):
        turns = ceil_div(ceil_div(n, height) * parts, plan.blocks)
        steps = turns * ceil_div(ceil_div(k, COLUMNS), parts)
        copied = steps * (height + plan.fetched(m)) * LINE
        whole = max(
            n * k * 2 / READ,
            copied / CACHED_EACH,
            ceil_div(n, height) * parts / turns * copied / CACHED,
            steps * height * plan.tokens * LINE / MULTIPLIED,
        )
        ahead = min(plan.stages, steps) * height * LINE * plan.blocks / READ
        total += whole + max(0.0, MEETING + height * plan.tokens * 4 / SENT - ahead)
    return total


@lru_cache(maxsize=4096)
def plan_for(m: int, shape: LayerShape, multiprocessors: int) -> LayerPlan | None:
    """The plan of M tokens of a layer that should cost least; None where there is none."""
    if not FEWEST_TOKENS <= m <= MOST_TOKENS:
        return None
    most = ceil_div(m, GROUP_TOKENS) * GROUP_TOKENS  # few plans, since each is compiled
    return min(plans(most, shape, multiprocessors), key=lambda plan: cost(plan, most, shape), default=None)


def plans_ahead(shape: LayerShape, multiprocessors: int) -> Iterator[LayerPlan]:
    """All that `plan_for` gives for a layer."""
    found = (plan_for(m, shape, multiprocessors) for m in range(GROUP_TOKENS, MOST_TOKENS + 1, GROUP_TOKENS))
    yield from dict.fromkeys(plan for plan in found if plan is not None)
