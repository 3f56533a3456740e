"""How linear_many is spread: every plan fits, covers its product once, and the cheapest is taken. No GPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.qwen_shapes import linears
from llmrs_cli.kernels.linear_many import EPILOGUES, unit
from llmrs_cli.kernels.loader import Unit, compile_unit
from llmrs_cli.kernels.many_plans import (
    AT_ONCE_SHARE,
    BOX,
    FEWEST_TOKENS,
    KINDS,
    LAGS,
    TILES,
    ManyPlan,
    Shared,
    chosen,
    cost,
    plan_for,
    planned_tokens,
    plans,
    plans_ahead,
    spread,
)
from llmrs_cli.kernels.resources import parse
from llmrs_cli.kernels.tensor_map import MAX_ROWS
from tests.kernels.test_shapes import BLOCK_LIMITS

TOKENS = st.one_of(st.integers(1, 1500), st.integers(1, 20_000))
ROWS = st.one_of(st.integers(1, 400), st.integers(1, 10_000)).map(lambda n: 16 * n)
VALUES = st.one_of(st.integers(1, 40), st.integers(1, 2400)).map(lambda k: 8 * k)
GPUS = st.one_of(st.just(132), st.integers(1, 200))
REGISTERS = 65536
"""Of a multiprocessor."""


def tiles_of(plan: ManyPlan, m: int, n: int) -> list[tuple[int, int]]:
    """First token and row of each tile in the order of its cluster, by the arithmetic of linear_many.cu."""
    tokens = plan.tokens * (2 if plan.shared == "rows" else 1)
    rows = plan.rows * (2 if plan.shared == "tokens" else 1)
    down, across = -(-m // tokens), -(-n // rows)
    found = []
    for item in range(down * across):
        first = item // (plan.band * across) * plan.band
        wide, left = min(plan.band, down - first), item - first * across
        for rank in range(plan.cluster):
            own = rank * plan.tokens if plan.shared == "rows" else 0
            aside = rank * plan.rows if plan.shared == "tokens" else 0
            found.append(((first + left % wide) * tokens + own, left // wide * rows + aside))
    return found


@given(m=TOKENS, n=ROWS, gpus=GPUS)
@example(m=8192, n=37888, gpus=132)
@example(m=1, n=16, gpus=2)
def test_every_plan_fits_the_gpu(m: int, n: int, gpus: int) -> None:
    for plan in plans(m, n, gpus, LAGS):
        assert plan.shared_bytes <= BLOCK_LIMITS["sm_90a"]
        assert plan.lag < plan.stages and plan.stages >= 3
        assert plan.room >= BOX and plan.room % BOX == 0
        assert 0 < plan.blocks <= gpus and plan.blocks % plan.cluster == 0
        assert plan.blocks <= plan.items(m, n) * plan.cluster
        assert 128 * (plan.groups + 1) <= 1024


@pytest.mark.parametrize("shared", KINDS)
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_what_a_block_brings_is_whole_patterns_of_the_swizzle(
    tile: tuple[int, int, int], shared: Shared
) -> None:
    plan = ManyPlan(2, *tile, shared)
    assert plan.brought_rows % 8 == 0 and plan.brought_tokens % 8 == 0
    assert max(plan.brought_rows, plan.brought_tokens) <= MAX_ROWS
    both = plan.brought_rows + plan.brought_tokens
    assert (
        plan.stage_bytes // 128 - both
        == {"nothing": 0, "rows": plan.rows / 2, "tokens": plan.tokens / 2}[shared]
    )


@given(
    m=st.integers(1, 5000),
    n=st.integers(1, 400).map(lambda n: 16 * n),
    tile=st.sampled_from(TILES),
    shared=st.sampled_from(KINDS),
    band=st.integers(0, 9),
)
def test_every_tile_is_multiplied_once(
    m: int, n: int, tile: tuple[int, int, int], shared: Shared, band: int
) -> None:
    plan = spread(m, n, tile, shared, 0, 132)
    tiles = tiles_of(replace(plan, band=band) if band else plan, m, n)
    assert len(set(tiles)) == len(tiles) == plan.items(m, n) * plan.cluster
    real = {(token, row) for token, row in tiles if token < m and row < n}
    assert real == {(t, r) for t in range(0, m, plan.tokens) for r in range(0, n, plan.rows)}


def test_a_band_has_all_rows_before_the_next_begins() -> None:
    plan = ManyPlan(132, 2, 1, 256, "rows", band=2)
    tiles = tiles_of(plan, 5 * 256, 3 * 256)
    firsts = [(token // 256, row // 256) for token, row in tiles[::2]]
    assert firsts == [
        (0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2),
        (2, 0), (3, 0), (2, 1), (3, 1), (2, 2), (3, 2),
        (4, 0), (4, 1), (4, 2),
    ]  # fmt: skip


@given(m=st.integers(FEWEST_TOKENS, 20_000), n=ROWS, k=VALUES, gpus=st.integers(2, 200))
def test_the_cheapest_plan_is_taken(m: int, n: int, k: int, gpus: int) -> None:
    most = planned_tokens(m)
    found, taken = plan_for(m, n, k, gpus), plan_for(most, n, k, gpus)
    all_of_them = {plan: cost(plan, most, n, k) for plan in plans(most, n, gpus)}
    assert taken is not None and all_of_them[taken] == min(all_of_them.values()) > 0
    assert found in list(plans(m, n, gpus)) and found.tile == taken.tile


@given(m=st.integers(1, 20_000))
def test_few_numbers_of_tokens_have_a_tile_of_their_own(m: int) -> None:
    most = planned_tokens(m)
    apart = 1 if m <= 512 else 256 if m <= 2048 else 2048
    assert m <= most < m + apart and most % apart == 0 and planned_tokens(most) == most


@pytest.mark.parametrize("m", [300, 1024, 1200, 8192])
@pytest.mark.parametrize(("n", "k"), [linear[:2] for linear in linears("7b") if linear[2] != "logits"])
def test_two_blocks_share_what_their_tiles_would_wait_for(m: int, n: int, k: int) -> None:
    """Of 256 tokens each reads little enough to be faster alone."""
    found = plan_for(m, n, k, 132)
    assert found is not None and (found.cluster == 2 or found.tokens == 256 or m == 300)
    assert found.blocks > 132 / 2


@pytest.mark.parametrize(
    ("m", "n", "k"), [(FEWEST_TOKENS - 1, 4608, 3584), (512, 4600, 3584), (512, 4608, 3580)]
)
def test_fewer_tokens_and_odd_shapes_are_left_to_others(m: int, n: int, k: int) -> None:
    assert plan_for(m, n, k, 132) is None


@given(
    m=st.lists(st.integers(FEWEST_TOKENS, 9000), min_size=1, max_size=5),
    n=ROWS,
    k=VALUES,
    epilogue=st.sampled_from(EPILOGUES),
)
def test_what_is_built_ahead_is_all_that_is_ever_run(m: list[int], n: int, k: int, epilogue: str) -> None:
    ahead = list(plans_ahead(m, n, k, epilogue, 132))
    assert len(ahead) == len(set(ahead))
    assert {chosen(tokens, n, k, epilogue, 132) for tokens in m} - {None} == set(ahead)


@pytest.mark.parametrize(
    ("m", "n", "k", "epilogue", "taken"),
    [
        (320, 9728, 896, "silu", True),
        (2048, 37888, 3584, "silu", True),
        (256, 9728, 896, "silu", False),
        (1024, 3584, 18944, "add", True),
        (768, 3584, 18944, "add", False),
        (2048, 896, 4864, "add", False),
        (2048, 3584, 3584, "add", False),
        (2048, 4608, 3584, "store", False),
        (4096, 3584, 3584, "add", False),
        (4096, 4608, 3584, "store", False),
        (4096, 152_064, 3584, "logits", False),
        (1200, 4608, 3584, "store", True),
        (1200, 3584, 3584, "add", True),
        (1200, 2560, 2048, "store", False),
        (1024, 4608, 3584, "store", False),
        (1200, 4608, 3584, "logits", False),
    ],
)
def test_what_the_library_multiplies_faster_is_left_to_it(
    m: int, n: int, k: int, epilogue: str, taken: bool
) -> None:
    assert (chosen(m, n, k, epilogue, 132) is not None) == taken


@given(m=TOKENS, n=ROWS, k=VALUES, multiprocessors=GPUS)
def test_tiles_that_run_at_once_need_one_turn_and_leave_few_multiprocessors_idle(
    m: int, n: int, k: int, multiprocessors: int
) -> None:
    plan = plan_for(m, n, k, multiprocessors, at_once=True)
    if plan is not None:
        assert plan.shared == "nothing" and plan.deep == 2
        assert plan.blocks == plan.items(m, n) <= multiprocessors
        assert plan.items(planned_tokens(m), n) >= AT_ONCE_SHARE * multiprocessors


def test_a_prompt_whose_queries_keys_and_values_are_multiplied_at_once() -> None:
    plan = plan_for(1200, 4608, 3584, 132, at_once=True)
    assert plan is not None and (plan.tokens, plan.rows, plan.blocks) == (256, 192, 120)


@pytest.mark.parametrize(("n", "k"), [(22_016, 2048), (37_888, 3584)])
def test_the_largest_tiles_share_nothing(n: int, k: int) -> None:
    """Measured, gate and up of 4,096 tokens: 602 and 1,663 us, shared in pairs 629 to 651 and 1,684 to 1,699."""
    plan = plan_for(4096, n, k, 132)
    assert plan is not None and (plan.tokens, plan.rows, plan.shared) == (256, 192, "nothing")


def test_every_tile_is_offered_alone_and_in_clusters() -> None:
    offered = [
        (plan.groups, plan.deep, plan.rows, plan.shared, plan.lag) for plan in plans(1200, 4608, 132, LAGS)
    ]
    assert set(offered) == {(*tile, kind, lag) for tile in TILES for kind in KINDS for lag in LAGS}
    assert len(offered) == len(set(offered))


def test_one_multiprocessor_has_no_clusters() -> None:
    assert {plan.shared for plan in plans(300, 256, 1)} == {"nothing"}


def test_a_plan_says_what_it_takes() -> None:
    plan = ManyPlan(132, 2, 1, 256)
    assert plan.tokens == 128 and plan.stage_bytes == 48 << 10 and plan.stages == 4 and plan.room == 4096
    assert plan.shared_bytes == 1024 + 4 * (48 << 10) + 4 * 16 + 8 * 4096
    assert plan.items(129, 257) == 2 and replace(plan, shared="tokens").items(129, 257) == 2
    assert replace(plan, shared="nothing").items(129, 257) == 4
    assert [plan.width(epilogue) for epilogue in EPILOGUES] == [64, 32, 64]
    assert [replace(plan, rows=80).width(epilogue) for epilogue in EPILOGUES] == [64, 16, 32]


WIDEST = [(2, 1, 256), (3, 1, 192), (2, 2, 192)]
"""Of each kind of tile the one of the most rows."""


def test_no_tile_is_wider_than_the_widest_of_its_kind() -> None:
    assert all(any(tile[:2] == wide[:2] and tile[2] <= wide[2] for wide in WIDEST) for tile in TILES)
    assert set(WIDEST) <= set(TILES)


@pytest.mark.parametrize(("bf16", "tiles"), [(True, WIDEST), (False, WIDEST[2:])], ids=["bf16", "f16"])
def test_the_widest_tiles_keep_their_sums_in_registers(bf16: bool, tiles: list[tuple[int, int, int]]) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings and nvidia-cuda-nvrtc are not installed")
    units = [unit(bf16, ManyPlan(132, *tile), epilogue) for tile in tiles for epilogue in EPILOGUES]
    with ThreadPoolExecutor() as pool:
        assert [line for found in pool.map(faults, units) for line in found] == []


def faults(unit: Unit) -> list[str]:
    """Registers that a unit spills, and products that wait for one another, as the assembler says."""
    log = compile_unit(unit, "sm_90a").log
    (kernel,) = parse(log)
    groups = dict(unit.macros)["GROUPS"]
    assert kernel.registers * 128 * (groups + 1) <= REGISTERS
    found = [f"{unit} spills {kernel.local_bytes} bytes"] if kernel.local_bytes else []
    return found + [f"{unit}: {line}" for line in log.splitlines() if "serialized" in line]
