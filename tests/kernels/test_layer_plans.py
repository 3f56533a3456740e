"""How layer_wide is spread: every plan fits the GPU and covers each product once, and the cheapest is taken. No GPU."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.qwen_shapes import MODELS
from llmrs_cli.kernels.layer_plans import (
    EIGHT,
    FEWEST_GATES,
    FEWEST_ROWS,
    FEWEST_STAGES,
    FEWEST_TOKENS,
    MOST_GATES,
    MOST_HELD,
    MOST_ROWS,
    MOST_STAGES,
    MOST_TOKENS,
    SHARED,
    LayerPlan,
    LayerShape,
    cost,
    held,
    plan_for,
    plans,
    plans_ahead,
)
from llmrs_cli.kernels.tensor_map import MAX_ROWS
from llmrs_cli.kernels.wide_plans import COLUMNS, GROUP_TOKENS, MAX_CLUSTER, at_once

TOKENS = st.integers(FEWEST_TOKENS, MOST_TOKENS)
SIZES = st.one_of(st.integers(1, 40), st.integers(1, 2400)).map(lambda k: 8 * k)
SHAPES = st.builds(LayerShape, heads=SIZES, hidden=SIZES, ffn=SIZES, qkv=SIZES)
GPUS = st.one_of(st.just(132), st.integers(2, 200))


def of_model(name: str) -> LayerShape:
    c, _, heads, kv_heads, d, f, _, _ = MODELS[name]
    return LayerShape(heads * d, c, f, (heads + 2 * kv_heads) * d)


@given(m=TOKENS, shape=SHAPES, gpus=GPUS)
@example(m=64, shape=of_model("7b"), gpus=132)
@example(m=192, shape=of_model("7b"), gpus=132)
@example(m=128, shape=of_model("0.5b"), gpus=132)
def test_every_plan_fits_the_gpu(m: int, shape: LayerShape, gpus: int) -> None:
    for plan in plans(m, shape, gpus):
        assert plan.shared <= SHARED
        assert FEWEST_STAGES <= plan.stages <= MOST_STAGES
        assert plan.weight_bytes % 1024 == 0 and plan.sum_bytes % 1024 == 0
        assert 2 <= plan.slices <= MAX_CLUSTER
        assert 0 < plan.blocks == at_once(plan.slices, gpus) <= gpus
        assert plan.gate_rows % 16 == 0 and FEWEST_GATES <= plan.gate_rows <= MOST_GATES[plan.groups]
        for rows in (plan.add_rows, plan.qkv_rows):
            assert rows % EIGHT == 0 and FEWEST_ROWS <= rows <= MOST_ROWS
            assert held(rows, plan.slices) <= MOST_HELD[plan.groups]
        assert max(MOST_ROWS, *MOST_GATES.values()) <= MAX_ROWS
        assert m <= plan.tokens < m + GROUP_TOKENS and m <= plan.fetched(m) <= plan.tokens
        assert plan.serves(m, shape)


@given(m=TOKENS, shape=SHAPES, gpus=GPUS)
def test_every_plan_covers_each_product_once(m: int, shape: LayerShape, gpus: int) -> None:
    for plan in plans(m, shape, gpus):
        clusters = plan.blocks // plan.slices
        for n, rows in ((shape.hidden, plan.add_rows), (shape.qkv, plan.qkv_rows)):
            firsts = range(0, n, rows)  # of the tile of each cluster
            assert len(firsts) <= clusters and firsts[-1] + rows >= n
        turns = [
            range(block * plan.gate_rows, 2 * shape.ffn, plan.blocks * plan.gate_rows)
            for block in range(plan.blocks)
        ]
        assert sorted(first for own in turns for first in own) == list(
            range(0, 2 * shape.ffn, plan.gate_rows)
        )
        for k in (shape.heads, shape.ffn, shape.hidden):
            steps = -(-k // COLUMNS)
            ends = [steps * slice_ // plan.slices for slice_ in range(plan.slices + 1)]
            assert all(first < past for first, past in pairwise(ends))


@given(m=TOKENS, shape=SHAPES, gpus=GPUS)
def test_the_cheapest_plan_is_taken(m: int, shape: LayerShape, gpus: int) -> None:
    found = plan_for(m, shape, gpus)
    most = -(-m // GROUP_TOKENS) * GROUP_TOKENS
    all_of_them = {plan: cost(plan, most, shape) for plan in plans(most, shape, gpus)}
    assert (found is None) == (not all_of_them)
    if found is not None:
        assert all_of_them[found] == min(all_of_them.values()) > 0
        assert found.serves(m, shape)


@settings(max_examples=20)  # of 194 choices each
@given(shape=SHAPES, gpus=GPUS)
@example(shape=of_model("3b"), gpus=132)
def test_what_is_built_ahead_is_all_that_is_ever_run(shape: LayerShape, gpus: int) -> None:
    ahead = list(plans_ahead(shape, gpus))
    assert len(ahead) == len(set(ahead)) <= 3
    assert {plan_for(m, shape, gpus) for m in range(1, MOST_TOKENS + 3)} - {None} == set(ahead)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("m", [9, 64, 65, 128, 129, 192])
def test_layers_of_models_have_a_plan(name: str, m: int) -> None:
    assert plan_for(m, of_model(name), 132) is not None


@pytest.mark.parametrize("m", [1, FEWEST_TOKENS - 1, MOST_TOKENS + 1])
def test_fewer_and_more_tokens_are_left_to_others(m: int) -> None:
    assert plan_for(m, of_model("3b"), 132) is None


@pytest.mark.parametrize(
    "changes", [{"heads": 100}, {"hidden": 900}, {"ffn": 4860}, {"qkv": 1148}, {"qkv": 0}]
)
def test_sizes_that_are_no_whole_eights_are_left_to_others(changes: dict[str, int]) -> None:
    assert plan_for(64, replace(of_model("0.5b"), **changes), 132) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"blocks": 119}, {"groups": 1}, {"add_rows": 112}, {"qkv_rows": 152}, {"slices": 8},
        {"gate_rows": 1000},
    ],
)  # fmt: skip
def test_a_plan_knows_what_it_does_not_serve(changes: dict[str, int]) -> None:
    plan, shape = LayerPlan(120, 2, 4, 120, 160, 160), of_model("7b")
    assert plan.serves(65, shape) and plan.serves(128, shape) and not plan.serves(129, shape)
    assert not replace(plan, **changes).serves(65, shape)
    assert not plan.serves(65, replace(shape, heads=128))


def test_a_plan_says_what_it_takes() -> None:
    plan = LayerPlan(blocks=120, groups=2, slices=4, add_rows=72, gate_rows=96, qkv_rows=88)
    assert plan.weight_bytes == 96 * 128
    assert plan.sum_bytes == 2 * 3 * 3 * 2048  # of three eights, from three others
    assert plan.stages == ((227 << 10) - 2048 - plan.sum_bytes - 3 * 128 * 128) // plan.weight_bytes
    assert plan.parts(2048) == 29 * 4
    assert plan.fetched(17) == 24 and plan.fetched(200) == 128
    assert plan.counts(120 * 48) == 2 and plan.counts(120 * 48 + 8) == 3
