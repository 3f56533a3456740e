"""How packed_wide is spread: every plan fits the GPU and covers its product once, and the cheapest is taken. No GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.kernels import packed_plans
from llmrs_cli.kernels.marlin_layout import GROUPS, TILE_COLUMNS, UNIT_ROWS, Layout
from llmrs_cli.kernels.packed_wide import unit
from llmrs_cli.kernels.packed_wide_plans import (
    FEWEST_TOKENS,
    MOST_TOKENS,
    MOST_WARPGROUPS,
    STEPS_OF_TOKENS,
    PackedWidePlan,
    cost,
    plan_for,
    plans,
)
from llmrs_cli.kernels.tensor_map import MAX_ROWS
from llmrs_cli.kernels.wide_plans import at_once
from tests.helpers.compiled import spills
from tests.kernels.test_shapes import BLOCK_LIMITS

TOKENS = st.integers(FEWEST_TOKENS, MOST_TOKENS)
LAYOUTS = st.builds(
    Layout,
    st.one_of(st.integers(1, 40), st.integers(1, 10_000)).map(lambda n: 16 * n),
    st.one_of(st.integers(1, 40), st.integers(1, 2400)).map(lambda k: 8 * k),
    st.sampled_from(GROUPS),
)
GPUS = st.one_of(st.just(132), st.integers(2, 200))
REGISTERS, RESERVED = 65536, 1024


@given(m=TOKENS, layout=LAYOUTS, gpus=GPUS)
def test_every_plan_fits_the_gpu(m: int, layout: Layout, gpus: int) -> None:
    for plan in plans(m, layout, gpus):
        assert plan.stages(layout) >= 2
        assert plan.shared_bytes(layout) + RESERVED <= BLOCK_LIMITS["sm_90a"]
        assert plan.tokens % 16 == 0 and plan.fetched(m) <= plan.tokens <= MAX_ROWS
        assert plan.blocks % plan.slices == 0 and 0 < plan.blocks <= at_once(plan.slices, gpus)
        assert 128 * (plan.warpgroups + 1) + plan.spare <= 1024


@given(m=TOKENS, layout=LAYOUTS, gpus=GPUS)
def test_every_plan_covers_its_product_once(m: int, layout: Layout, gpus: int) -> None:
    for plan in plans(m, layout, gpus):
        rows, tokens = UNIT_ROWS * plan.warpgroups, plan.tokens
        across, down = -(-layout.rows // rows), -(-m // tokens)
        assert plan.tiles(layout, m) == across * down
        assert rows * (across - 1) < layout.rows and tokens * (down - 1) < m
        assert plan.blocks <= plan.tiles(layout, m) * plan.slices
        cuts = [layout.unit_columns * s // plan.slices for s in range(plan.slices + 1)]
        assert cuts == sorted(set(cuts)) and cuts[-1] * TILE_COLUMNS >= layout.columns  # whole groups each


@given(layout=LAYOUTS, tokens=st.sampled_from(list(MOST_WARPGROUPS)), slices=st.integers(1, 8))
def test_sums_of_a_cluster_find_their_places(layout: Layout, tokens: int, slices: int) -> None:
    """The arithmetic of packed_wide.cu: whoever sends, no place is taken twice, and none lies outside."""
    plan = PackedWidePlan(slices, tokens, 1, slices)
    for to in range(slices):
        places = [
            n // slices * (slices - 1) + sender - (sender > to)
            for sender in range(slices)
            for n in range(to, tokens // 8, slices)
            if sender != to
        ]
        assert len(set(places)) == len(places)
        assert all(0 <= place * UNIT_ROWS * 32 < plan.sum_bytes for place in places)


@given(m=TOKENS, layout=LAYOUTS, gpus=GPUS)
def test_the_cheapest_plan_is_taken(m: int, layout: Layout, gpus: int) -> None:
    found = plan_for(m, layout, gpus)
    most = min(size for size in STEPS_OF_TOKENS if size >= m)
    costs = {plan: cost(plan, most, layout) for plan in plans(most, layout, gpus)}
    assert found is not None and costs[found] == min(costs.values()) > 0


@pytest.mark.parametrize(
    ("m", "n", "k"), [(3, 4608, 3584), (257, 4608, 3584), (64, 4600, 3584), (64, 4608, 3580)]
)
def test_other_sizes_are_left_to_others(m: int, n: int, k: int) -> None:
    assert plan_for(m, Layout(n, k, 128), 132) is None


def test_a_switch_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert packed_plans.WIDE_TOKENS == MOST_TOKENS
    monkeypatch.setattr(packed_plans, "WIDE_TOKENS", 0)
    assert packed_plans.wide_plan(132, 64, Layout(4608, 3584, 128), hopper=True) is None
    assert packed_plans.wide_units(False, [(Layout(4608, 3584, 128), "store")], 132, hopper=True) == ()


def test_it_is_for_hopper() -> None:
    layout = Layout(4608, 3584, 128)
    assert packed_plans.wide_plan(132, 64, layout, hopper=False) is None
    assert packed_plans.wide_plan(132, 64, layout, hopper=True) == plan_for(64, layout, 132)


@pytest.mark.parametrize(
    ("n", "k", "m", "best"),
    [
        (37888, 3584, 16, (3, 2)), (37888, 3584, 32, (3, 2)), (37888, 3584, 64, (3, 2)),
        (3584, 18944, 16, (4, 8)), (3584, 18944, 64, (2, 4)),
        (4608, 3584, 64, (2, 3)),
        (3584, 3584, 16, (2, 4)), (3584, 3584, 32, (2, 4)),
    ],
)  # fmt: skip
def test_the_fastest_are_taken_where_one_was(n: int, k: int, m: int, best: tuple[int, int]) -> None:
    """Warpgroups and slices of the 7B's products on an H200, where the next best takes 1 % longer or more."""
    plan = plan_for(m, Layout(n, k, 128), 132)
    assert plan is not None and (plan.warpgroups, plan.slices) == best


def test_what_is_built_ahead_is_all_that_is_ever_run() -> None:
    layout = Layout(3584, 18944, 128)
    ahead = packed_plans.wide_units(False, [(layout, "add"), (layout, "add")], 132, hopper=True)
    run = {plan_for(m, layout, 132) for m in range(FEWEST_TOKENS, MOST_TOKENS + 1)}
    assert len(set(ahead)) == len(ahead)
    assert set(ahead) == {unit(False, layout, plan, "add") for plan in run if plan is not None}


def test_a_plan_says_what_it_takes() -> None:
    plan, layout = PackedWidePlan(132, 64, 3, 2), Layout(37888, 3584, 128)
    assert plan.stage_bytes(layout) == 64 * 256 + 3 * 4352 + 256  # whole kilobytes
    assert plan.sum_bytes == 3 * 4 * 2048  # from the other block, of half of the tokens
    assert plan.stages(layout) == 6 and plan.spare == 0
    assert plan.tiles(layout, 64) == 198 and plan.tiles(layout, 65) == 396
    assert plan.fetched(60) == plan.fetched(200) == 64 and plan.fetched(9) == 16
    assert replace(plan, warpgroups=2).spare == 128 and replace(plan, slices=1).sum_bytes == 0
    assert plan.whole(layout, 64) == 1 and plan.turns(layout, 64) == (
        2,
        1,
    )  # 66 tiles are left for 66 clusters
    assert replace(plan, slices=1).turns(layout, 64) == (2, 0)


@given(m=TOKENS, layout=LAYOUTS, gpus=GPUS)
def test_every_tile_has_its_turn(m: int, layout: Layout, gpus: int) -> None:
    """The arithmetic of packed_wide.cu: each tile is one block's, or all of a cluster's, once."""
    plan = plan_for(m, layout, gpus)
    assert plan is not None
    tiles, clusters = plan.tiles(layout, m), plan.blocks // plan.slices
    turns, shared = plan.turns(layout, m)
    alone = turns - shared if plan.slices > 1 else turns
    first = plan.whole(layout, m) * plan.blocks
    own = [turn * plan.blocks + block for turn in range(alone) for block in range(plan.blocks)]
    both = [first + turn * clusters + cluster for turn in range(shared) for cluster in range(clusters)]
    found = [item for item in own + both if item < tiles]
    assert sorted(found) == list(range(tiles))
    assert all(item < tiles for item in own) or plan.slices == 1


# -- what the compiler says of them -------------------------------------------------------------------------


@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("tokens", MOST_WARPGROUPS)
def test_the_largest_blocks_of_each_tile_keep_to_their_registers(tokens: int, group: int) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings and nvidia-cuda-nvrtc are not installed")
    layout = Layout(3584, 18944, group)
    largest = [PackedWidePlan(120, tokens, MOST_WARPGROUPS[tokens], slices) for slices in (1, 3, 8)]
    smaller = [PackedWidePlan(120, tokens, plans - 1, 2) for plans in (MOST_WARPGROUPS[tokens],) if plans > 1]
    assert spills((unit(True, layout, plan, "add") for plan in (*largest, *smaller)), "sm_90a") == []
