"""What the launcher of linear_wide passes on, and what it refuses before anything runs; no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels import linear_wide
from llmrs_cli.kernels.norm_ahead import Ahead
from llmrs_cli.kernels.wide_plans import MOST_TOKENS, WidePlan, plan_for
from tests.helpers.launches import Recorder, bits, floats, plain_maps

ALONE = WidePlan(10, 2, 80)
SHARED = WidePlan(2 * 4 * 3, 1, 64, 3)
"""Slices of 65 to 128 tokens of 256 rows."""


@pytest.fixture
def no_maps() -> Iterator[None]:
    with plain_maps():
        yield


def broad(plan: WidePlan, m: int, n: int, k: int, epilogue: Any = "store", **changes: Any) -> Recorder:
    device = Recorder()
    columns = n // 2 if epilogue == "silu" else n
    arrays: dict[str, Any] = {
        "weight": bits(n, k),
        "x": bits(m, k),
        "out": floats(m, columns) if epilogue in ("add", "logits") else bits(m, columns),
    } | changes
    linear_wide.linear_wide(device, True, plan, epilogue, **arrays)
    return device


def room_ahead(m: int, k: int, parts: int, stride: int) -> Ahead:
    """What is left of M tokens of K values for the norm after them."""
    return Ahead(floats(k), bits(m, k), floats(m, stride), parts)


@pytest.mark.parametrize("epilogue", linear_wide.EPILOGUES)
@pytest.mark.parametrize("plan", [ALONE, SHARED, replace(SHARED, room="more")], ids=str)
def test_a_plan_is_the_shape_of_its_launch(no_maps: None, plan: WidePlan, epilogue: Any) -> None:
    ((name, shape),) = broad(plan, 100, 256, 192, epilogue).shapes
    assert name == "linear_wide" and shape.grid == (plan.blocks, 1, 1) and shape.at_once == 1
    assert shape.block == (128 * (plan.groups + 1), 1, 1) and shape.shared == plan.shared


@given(m=st.integers(1, MOST_TOKENS), n=st.integers(1, 300), k=st.integers(1, 300), gpus=st.integers(2, 200))
def test_a_plan_that_is_chosen_is_served(m: int, n: int, k: int, gpus: int) -> None:
    plan = plan_for(m, 16 * n, 8 * k, gpus)
    with plain_maps():
        shapes = [] if plan is None else broad(plan, m, 16 * n, 8 * k).shapes
    assert all(shape.grid[0] <= gpus for _, shape in shapes)


@pytest.mark.parametrize(("m", "fetched"), [(17, 24), (24, 24), (100, 104), (200, 128)])
def test_the_copy_engine_is_told_tiles_of_both_matrices(no_maps: None, m: int, fetched: int) -> None:
    weight, x = bits(256, 192), bits(m, 192)
    (passed,) = broad(ALONE, m, 256, 192, weight=weight, x=x).passed
    assert passed["weight"] == (weight.data.ptr, 256, 192, ALONE.rows)
    assert passed["x"] == (x.data.ptr, m, 192, fetched)
    assert (passed["m"], passed["n"], passed["k"], passed["fetched"]) == (m, 256, 192, fetched)


def test_a_product_alone_neither_takes_nor_leaves_a_norm(no_maps: None) -> None:
    bias = floats(256)
    (passed,) = broad(ALONE, 100, 256, 192, "add", bias=bias, alpha=0.5).passed
    assert passed["bias"] == bias.data.ptr and passed["alpha"] == 0.5
    for name in ("squares", "parts", "stride", "eps", "norm", "normed", "left", "left_stride"):
        assert not passed[name], name
    assert not broad(ALONE, 100, 256, 192).passed[0]["bias"]


def test_what_a_norm_needs_reaches_the_kernel(no_maps: None) -> None:
    ahead, leaves = room_ahead(100, 192, 11, 12), room_ahead(100, 256, SHARED.parts(256), 16)
    (passed,) = broad(SHARED, 100, 256, 192, "add", ahead=ahead, eps=0.25, leaves=leaves).passed
    assert (passed["squares"], passed["parts"], passed["stride"]) == (ahead.squares.data.ptr, 11, 12)
    assert passed["eps"] == 0.25
    assert passed["norm"] == leaves.norm.data.ptr and passed["normed"] == leaves.values.data.ptr
    assert (passed["left"], passed["left_stride"]) == (leaves.squares.data.ptr, 16)


@pytest.mark.parametrize(("n", "k"), [(256, 36), (250, 64), (248, 64)])
def test_work_that_does_not_divide_is_refused(no_maps: None, n: int, k: int) -> None:
    with pytest.raises(EngineFault, match=rf"linear_wide cannot serve 20 tokens of \({n}, {k}\)"):
        broad(WidePlan(2, 1, 64), 20, n, k)


def test_a_matrix_of_other_columns_is_refused(no_maps: None) -> None:
    with pytest.raises(EngineFault, match=r"linear_wide cannot serve 20 tokens of \(256, 72\)"):
        broad(ALONE, 20, 256, 64, weight=bits(256, 72))


@pytest.mark.parametrize(("m", "blocks"), [(100, 25), (100, 21), (100, 27), (64, 24), (129, 24)])
def test_blocks_that_share_columns_have_one_tile_each(no_maps: None, m: int, blocks: int) -> None:
    with pytest.raises(EngineFault, match=f"linear_wide has no place for {m} tokens"):
        broad(replace(SHARED, blocks=blocks), m, 256, 192)


@pytest.mark.parametrize("epilogue", ["store", "silu", "logits"])
def test_only_a_sum_leaves_something_for_a_norm(no_maps: None, epilogue: Any) -> None:
    leaves = room_ahead(100, 256, SHARED.parts(256), 16)
    with pytest.raises(EngineFault, match="leaves 12 sums of squares after an add"):
        broad(SHARED, 100, 256, 192, epilogue, leaves=leaves)


@pytest.mark.parametrize(("parts", "stride"), [(16, 8), (11, 16), (13, 16)])
def test_sums_of_squares_are_as_many_as_the_plan_leaves(no_maps: None, parts: int, stride: int) -> None:
    with pytest.raises(EngineFault, match=f"leaves 12 sums of squares after an add, not {parts}"):
        broad(SHARED, 100, 256, 192, "add", leaves=room_ahead(100, 256, parts, stride))


@pytest.mark.parametrize("stride", [8, 13])
def test_sums_of_squares_need_their_room_in_whole_vectors(no_maps: None, stride: int) -> None:
    with pytest.raises(EngineFault, match=f"has no room for 12 sums in rows of {stride}"):
        broad(SHARED, 100, 256, 192, "add", leaves=room_ahead(100, 256, 12, stride))
    with pytest.raises(EngineFault, match=f"has no room for 12 sums in rows of {stride}"):
        broad(SHARED, 100, 256, 192, ahead=room_ahead(100, 192, 12, stride))


def test_a_slice_without_columns_is_refused(no_maps: None) -> None:
    with pytest.raises(EngineFault, match="linear_wide has no place"):
        broad(SHARED, 100, 256, 64)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("out", {"out": bits(100, 256)}),
        ("bias", {"bias": floats(255)}),
        ("squares", {"ahead": room_ahead(99, 192, 4, 4)}),
        ("norm", {"leaves": replace(room_ahead(100, 256, 12, 12), norm=floats(255))}),
        ("normed", {"leaves": room_ahead(101, 256, 12, 12)}),
        ("left", {"leaves": replace(room_ahead(100, 256, 12, 12), squares=floats(99, 12))}),
    ],
)
def test_an_array_of_a_product_that_does_not_fit_is_named(
    no_maps: None, name: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(EngineFault, match=f"Kernel linear_wide: {name} must be"):
        broad(SHARED, 100, 256, 192, "add", **changes)
