"""How products with 4-bit weights are spread: every plan fits its GPU, and its workers share the work evenly. No GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.kernels import packed_large, packed_plans, packed_small
from llmrs_cli.kernels.catalog import MUCH_SHARED, packed_units
from llmrs_cli.kernels.marlin_layout import GROUPS, UNIT_ROWS, Layout
from tests.kernels.test_shapes import BLOCK_LIMITS

LAYOUTS = st.builds(
    Layout, st.integers(1, 160_000), st.integers(1, 2400).map(lambda v: v * 8), st.sampled_from(GROUPS)
)


def deep(arch: str) -> bool:
    return arch in MUCH_SHARED


@pytest.mark.parametrize("arch", BLOCK_LIMITS)
@given(layout=LAYOUTS, m=st.integers(1, packed_small.MAX_TOKENS))
def test_streams_fit_every_gpu(arch: str, layout: Layout, m: int) -> None:
    plan = packed_plans.stream_plan(132, layout, deep(arch), arch == packed_plans.HOPPER)
    assert plan.shared_bytes(layout, m, normed=False) <= BLOCK_LIMITS[arch]
    assert 1 <= plan.grid(layout) <= 132
    assert packed_small.unit(False, layout.group, plan) in packed_units(False, layout.group, arch)


@given(
    layout=LAYOUTS,
    blocks=st.integers(1, 200),
    tiles=st.sampled_from([1, 2, 4]),
    m=st.integers(1, 8),
)
def test_no_block_has_more_tiles_than_it_must(layout: Layout, blocks: int, tiles: int, m: int) -> None:
    """The arithmetic of packed_small.cu: turns of all blocks, then a run for each."""
    plan = packed_small.StreamPlan(blocks, tiles=tiles)
    turns, share = plan.spread(layout)
    starts = [block * share >> 32 for block in range(plan.grid(layout) + 1)]
    lengths = [after - before for before, after in zip(starts, starts[1:], strict=False)]
    whole = -(-layout.rows // 16)
    assert turns * plan.grid(layout) * tiles + starts[-1] == whole
    assert turns * tiles + max(lengths) == -(-whole // plan.grid(layout))
    assert max(lengths) <= tiles
    assert plan.held(layout, m, normed=True) <= turns + -(-max(lengths) // tiles)


@pytest.mark.parametrize("arch", BLOCK_LIMITS)
@given(layout=LAYOUTS, m=st.integers(packed_small.MAX_TOKENS + 1, 2048))
def test_tiles_fit_every_gpu(arch: str, layout: Layout, m: int) -> None:
    hopper = arch == packed_plans.HOPPER
    plan = packed_plans.tile_plan(132, m, layout.group, deep(arch), hopper)
    assert packed_large.shared_bytes(plan, layout) <= BLOCK_LIMITS[arch]
    assert plan.rows % UNIT_ROWS == 0 and plan.warps % 4 == 0
    largest = packed_plans.tile_sizes(layout.group, hopper)[-1]
    assert plan.tokens == min(64 if 64 < m <= 192 else max(plan.tokens, m), largest)
    assert packed_large.unit(False, layout.group, plan) in packed_units(False, layout.group, arch)
    tiles = plan.tiles(layout, m)
    workers = plan.workers(layout, m)
    if plan.whole(layout, m):
        assert workers <= tiles
    else:
        assert workers == min(132, tiles * layout.unit_columns)


@given(units=st.integers(1, 70_000), workers=st.integers(1, 2112))
def test_who_has_a_unit_is_found_and_runs_differ_by_one_at_most(units: int, workers: int) -> None:
    """The arithmetic of runs.cuh, in 32 bits."""
    workers = min(workers, units)
    starts = [units * worker // workers for worker in range(workers + 1)]
    lengths = [after - before for before, after in zip(starts, starts[1:], strict=False)]
    assert min(lengths) >= 1 and max(lengths) - min(lengths) <= 1
    for unit in {0, units // 2, units - 1, starts[workers // 2]}:
        found = ((unit + 1) * workers - 1) // units
        assert starts[found] <= unit < starts[found + 1]
        assert (unit + 1) * workers < 2**32
