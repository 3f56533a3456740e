"""How packed_many is spread: every plan fits, its registers too, and the cheapest is taken. No GPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.qwen_shapes import linears
from llmrs_cli.kernels.linear_many import EPILOGUES
from llmrs_cli.kernels.loader import Unit
from llmrs_cli.kernels.many_plans import BOX, FEWEST_TOKENS, LAGS, TILES, ManyEpilogue, planned_tokens
from llmrs_cli.kernels.marlin_layout import GROUPS, Layout
from llmrs_cli.kernels.packed_many import unit
from llmrs_cli.kernels.packed_many_plans import (
    KINDS,
    PackedManyPlan,
    chosen,
    cost,
    helpers_of,
    plan_for,
    plans,
    plans_ahead,
)
from tests.helpers.compiled import report, resources
from tests.kernels.test_shapes import BLOCK_LIMITS

LAYOUTS = st.builds(
    Layout,
    st.integers(1, 2400).map(lambda n: 16 * n),
    st.integers(1, 2400).map(lambda k: 8 * k),
    st.sampled_from(GROUPS),
)
GPUS = st.one_of(st.just(132), st.integers(1, 200))
GATE_UP = Layout(37888, 3584, 128)
REGISTERS = 65536
"""Of a multiprocessor."""


@settings(max_examples=30)
@given(m=st.integers(1, 20_000), layout=LAYOUTS, gpus=GPUS)
@example(m=8192, layout=Layout(37888, 3584, 32), gpus=132)
@example(m=1, layout=Layout(16, 8, 128), gpus=2)
def test_every_plan_fits_the_gpu(m: int, layout: Layout, gpus: int) -> None:
    for plan in plans(m, layout, gpus, LAGS):
        assert plan.shared_bytes <= BLOCK_LIMITS["sm_90a"]
        assert plan.lag < plan.stages and plan.stages >= 3
        assert plan.room >= BOX and plan.room % BOX == 0
        assert 0 < plan.blocks <= gpus and plan.blocks % plan.cluster == 0
        assert plan.blocks <= plan.items(m, layout.rows) * plan.cluster
        assert plan.group == layout.group and plan.shared in KINDS


def test_every_tile_is_offered_alone_and_in_pairs_with_all_that_may_help() -> None:
    offered = [
        ((plan.groups, plan.deep, plan.rows), plan.helpers, plan.shared, plan.lag)
        for plan in plans(1200, GATE_UP, 132, LAGS)
    ]
    assert len(offered) == len(set(offered))
    assert set(offered) == {
        (tile, helpers, kind, lag)
        for tile in TILES
        for helpers in helpers_of(tile)
        for kind in KINDS
        for lag in LAGS
    }


def test_one_multiprocessor_has_no_clusters() -> None:
    assert {plan.shared for plan in plans(300, Layout(256, 256, 128), 1)} == {"nothing"}


@given(m=st.integers(FEWEST_TOKENS, 20_000), layout=LAYOUTS, gpus=st.integers(2, 200))
def test_the_cheapest_plan_is_taken(m: int, layout: Layout, gpus: int) -> None:
    most, n, k = planned_tokens(m), layout.rows, layout.columns
    found, taken = plan_for(m, layout, gpus), plan_for(most, layout, gpus)
    all_of_them = {plan: cost(plan, most, n, k) for plan in plans(most, layout, gpus)}
    assert taken is not None and all_of_them[taken] == min(all_of_them.values()) > 0
    assert found is not None and found in list(plans(m, layout, gpus))
    assert (found.tile, found.helpers) == (taken.tile, taken.helpers)


@pytest.mark.parametrize("m", [512, 1024, 1280, 2048])
@pytest.mark.parametrize(("n", "k"), [linear[:2] for linear in linears("7b") if linear[2] != "logits"])
def test_the_products_of_a_large_model_fill_the_gpu(m: int, n: int, k: int) -> None:
    found = plan_for(m, Layout(n, k, 128), 132)
    assert found is not None and found.blocks > 132 / 2


@pytest.mark.parametrize(
    ("m", "n", "k"), [(FEWEST_TOKENS - 1, 4608, 3584), (512, 4600, 3584), (512, 4608, 3580)]
)
def test_fewer_tokens_and_odd_shapes_are_left_to_others(m: int, n: int, k: int) -> None:
    assert plan_for(m, Layout(n, k, 128), 132) is None


def test_a_plan_says_what_it_takes() -> None:
    plan = PackedManyPlan(132, 2, 2, 192, "tokens")
    assert plan.tokens == 256 and plan.stage_bytes == 56 << 10 and plan.stages == 3 and plan.room == 4096
    assert plan.wideners == 3 and plan.code_stages == 2 and plan.code_bytes == 2 * 12 * 1088
    assert plan.shared_bytes == 1024 + 3 * (56 << 10) + 8 * 4096 + plan.code_bytes + 8 * (6 + 6)
    small = PackedManyPlan(132, 2, 1, 64, "tokens", group=32, helpers=2)
    assert small.wideners == 7 and small.code_stages == 3 and small.code_bytes == 3 * 4 * 1280


# -- registers --------------------------------------------------------------------------------------------


def widest() -> list[tuple[tuple[int, int, int], int]]:
    """Of each kind of tile, with as many that help, the one of the most rows."""
    found: dict[tuple[int, int, int], tuple[int, int, int]] = {}
    for tile in TILES:
        for helpers in helpers_of(tile):
            kind = (*tile[:2], helpers)
            found[kind] = max(found.get(kind, tile), tile)
    return [(tile, kind[2]) for kind, tile in found.items()]


@pytest.mark.parametrize(("tile", "helpers"), widest(), ids=str)
def test_the_widest_tiles_keep_their_sums_in_registers(tile: tuple[int, int, int], helpers: int) -> None:
    """With small groups, of which a warp that widens keeps the most."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings and nvidia-cuda-nvrtc are not installed")
    plan = PackedManyPlan(132, *tile, "tokens", group=32, helpers=helpers)
    units = [unit(epilogue == "silu", plan, epilogue) for epilogue in EPILOGUES]
    with ThreadPoolExecutor() as pool:
        assert [line for found in pool.map(faults, units) for line in found] == []


def faults(unit: Unit) -> list[str]:
    """What the assembler says against a unit: registers that it spills or does not share out, products that wait."""
    (kernel,), macros = resources(unit, "sm_90a"), dict(unit.macros)
    warpgroups = macros["GROUPS"] + macros["HELPERS"]
    found = [f"{unit} spills {kernel.local_bytes} bytes"] if kernel.local_bytes else []
    if kernel.registers != REGISTERS // (128 * warpgroups) // 8 * 8:
        found.append(f"{unit} starts with {kernel.registers} registers")
    return found + [f"{unit}: {line}" for line in report(unit, "sm_90a").splitlines() if "serialized" in line]


@given(m=st.integers(1, 20_000), layout=LAYOUTS, gpus=GPUS, epilogue=st.sampled_from(EPILOGUES))
@example(m=1280, layout=Layout(3584, 18944, 128), gpus=132, epilogue="add")
def test_it_is_taken_with_silu_inside_or_where_one_turn_of_large_tiles_fills_the_gpu(
    m: int, layout: Layout, gpus: int, epilogue: ManyEpilogue
) -> None:
    best, found = plan_for(m, layout, gpus), chosen(m, layout, epilogue, gpus)
    if best is None or epilogue == "silu":
        assert found == best
        return
    one_turn = best.items(m, layout.rows) * best.cluster <= gpus
    assert found == (best if best.deep == 2 and one_turn and best.blocks >= 0.9 * gpus else None)


def test_the_products_of_a_prompt_of_1_200_tokens_are_its_own() -> None:
    taken = {
        (n, k): chosen(1280, Layout(n, k, 128), epilogue, 132) is not None
        for n, k, epilogue in linears("7b")
        if epilogue != "logits"
    }
    assert all(taken.values()) and len(taken) == 4


def test_what_is_taken_is_known_ahead() -> None:
    mine: list[tuple[Layout, ManyEpilogue]] = [(GATE_UP, "silu"), (Layout(3584, 18944, 128), "add")]
    found = list(plans_ahead((512, 1280, 2048), mine, 132))
    wanted = {(chosen(m, layout, what, 132), what) for m in (512, 1280, 2048) for layout, what in mine}
    assert (
        set(found) == {pair for pair in wanted if pair[0] is not None} and len(found) == len(set(found)) > 2
    )
