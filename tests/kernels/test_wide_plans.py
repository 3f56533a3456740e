"""How linear_wide is spread: every plan fits the GPU and covers its product once, and the cheapest is taken. No GPU."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llmrs_cli.kernels.tensor_map import MAX_ROWS
from llmrs_cli.kernels.wide_plans import (
    COLUMNS,
    FEW,
    FEW_OF_BROAD,
    GROUP_TOKENS,
    MAX_CLUSTER,
    MOST_ROWS,
    MOST_STAGES,
    MOST_TOKENS,
    NARROW,
    SHARED,
    WidePlan,
    at_once,
    cost,
    plan_for,
    plans,
    plans_ahead,
)
from tests.kernels.test_shapes import BLOCK_LIMITS

LIMIT = BLOCK_LIMITS["sm_90a"]
BARRIERS = 2 * MOST_STAGES * 8
"""Bytes that a block takes beside its ring."""
TOKENS = st.integers(FEW + 1, MOST_TOKENS)
ROWS = st.one_of(st.integers(1, 400), st.integers(1, 10_000)).map(lambda n: 16 * n)
VALUES = st.one_of(st.integers(1, 40), st.integers(1, 2400)).map(lambda k: 8 * k)
GPUS = st.one_of(st.just(132), st.integers(2, 200))


@given(m=TOKENS, n=ROWS, k=VALUES, gpus=GPUS)
@example(m=MOST_TOKENS, n=152064, k=3584, gpus=132)
@example(m=17, n=16, k=8, gpus=2)
def test_every_plan_fits_the_gpu(m: int, n: int, k: int, gpus: int) -> None:
    for plan in plans(m, n, k, gpus):
        assert plan.rows % 16 == 0 and plan.rows <= MOST_ROWS[plan.room][plan.groups] <= MAX_ROWS
        assert 2 <= plan.stages <= MOST_STAGES
        assert plan.shared + BARRIERS <= SHARED[plan.room] <= LIMIT
        assert plan.rows * plan.groups * GROUP_TOKENS * 4 <= plan.stages * plan.stage_bytes  # where sums meet
        assert 1 <= plan.slices <= MAX_CLUSTER
        assert plan.blocks % plan.slices == 0 and plan.blocks <= at_once(plan.slices, gpus)


@given(m=TOKENS, n=ROWS, k=VALUES, gpus=GPUS)
def test_every_plan_covers_its_product_once(m: int, n: int, k: int, gpus: int) -> None:
    for plan in plans(m, n, k, gpus):
        tokens, tiles = plan.groups * GROUP_TOKENS, plan.tiles(m, n)
        across, down = -(-n // plan.rows), -(-m // tokens)
        assert across * plan.rows - n < plan.rows and tokens * (down - 1) < m <= tokens * down
        assert tiles == across * down
        if plan.slices > 1:
            assert plan.blocks == tiles * plan.slices
            steps = -(-k // COLUMNS)
            ends = [steps * slice_ // plan.slices for slice_ in range(plan.slices + 1)]
            assert all(first < past for first, past in pairwise(ends))


@given(m=TOKENS, n=ROWS, k=VALUES, gpus=GPUS)
def test_a_norm_is_left_in_a_sum_for_each_block_of_a_token(m: int, n: int, k: int, gpus: int) -> None:
    for plan in plans(m, n, k, gpus):
        tokens = -(-m // (plan.groups * GROUP_TOKENS))
        assert plan.parts(n) == plan.tiles(m, n) // tokens * plan.slices


@given(m=TOKENS, n=ROWS, k=VALUES, gpus=GPUS)
def test_tokens_are_fetched_by_eights_and_no_more_than_there_are(m: int, n: int, k: int, gpus: int) -> None:
    for plan in plans(m, n, k, gpus):
        fetched = plan.fetched(m)
        assert fetched % 8 == 0 and fetched <= min(plan.groups * GROUP_TOKENS, MAX_ROWS)
        assert min(m, plan.groups * GROUP_TOKENS) <= fetched < m + 8


@given(slices=st.integers(1, MAX_CLUSTER), gpus=st.integers(MAX_CLUSTER, 200))
def test_clusters_that_run_at_once_are_whole(slices: int, gpus: int) -> None:
    blocks = at_once(slices, gpus)
    assert 0 <= blocks <= gpus and blocks % slices == 0
    assert at_once(slices, 132) >= 102 - 102 % slices


@given(m=TOKENS, n=ROWS, k=VALUES, gpus=GPUS)
def test_the_cheapest_plan_is_taken(m: int, n: int, k: int, gpus: int) -> None:
    found = plan_for(m, n, k, gpus)
    if found is None:
        return
    most = -(-m // GROUP_TOKENS) * GROUP_TOKENS
    all_of_them = {plan: cost(plan, most, n, k) for plan in plans(most, n, k, gpus)}
    assert all_of_them[found] == min(all_of_them.values()) > 0
    assert found in set(plans(m, n, k, gpus))


@pytest.mark.parametrize(
    ("n", "k"), [(4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944), (2560, 2048), (9728, 896)]
)
@pytest.mark.parametrize("m", [9, 24, 64, 96, 128, 192])
def test_what_models_multiply_has_a_plan(m: int, n: int, k: int) -> None:
    assert plan_for(m, n, k, 132) is not None


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(MOST_TOKENS + 1, 4608, 3584), (64, 4600, 3584), (64, 4608, 3580), (8192, 896, 896), (64, 8, 64)],
)
def test_many_tokens_and_odd_shapes_are_left_to_others(m: int, n: int, k: int) -> None:
    assert plan_for(m, n, k, 132) is None


@pytest.mark.parametrize(
    ("n", "k", "few"),
    [(4608, 3584, FEW_OF_BROAD), (9728, NARROW, FEW), (NARROW, 4864, FEW), (9728, NARROW + 8, FEW_OF_BROAD)],
)
def test_few_tokens_are_left_to_kernels_that_read_weights_alone(n: int, k: int, few: int) -> None:
    assert plan_for(few, n, k, 132) is None and plan_for(few + 1, n, k, 132) is not None


@pytest.mark.parametrize("m", [129, 160, 176, 193, 224, 256])
def test_tokens_that_fill_tiles_badly_are_left_to_others_where_matrices_are_large(m: int) -> None:
    assert plan_for(m, 37888, 3584, 132) is None
    assert plan_for(m, 2560, 2048, 132) is not None
    assert plan_for(192 if m < 192 else 128, 37888, 3584, 132) is not None


@settings(max_examples=20)  # of 257 choices each
@given(n=ROWS, k=VALUES, gpus=GPUS)
@example(n=4608, k=3584, gpus=132)
@example(n=896, k=4864, gpus=132)
def test_what_is_built_ahead_is_all_that_is_ever_run(n: int, k: int, gpus: int) -> None:
    ahead = list(plans_ahead(n, k, gpus))
    assert len(ahead) == len(set(ahead))
    run = {plan_for(m, n, k, gpus) for m in range(1, MOST_TOKENS + 2)}
    assert run - {None} == set(ahead)


def test_a_plan_says_what_it_takes() -> None:
    plan = WidePlan(blocks=48, groups=2, rows=80, slices=4, room="more")
    assert plan.stage_bytes == (128 + 80) * 128
    assert plan.stages == 4 and plan.shared == 4 * plan.stage_bytes + 1024
    assert plan.tiles(129, 900) == 24 and plan.parts(900) == 48
    assert plan.fetched(17) == 24 and plan.fetched(129) == 128
