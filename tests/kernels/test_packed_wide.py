"""What the launcher of packed_wide passes on, and what it refuses before anything runs; no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels import packed_wide
from llmrs_cli.kernels.marlin_layout import GROUPS, Layout
from llmrs_cli.kernels.norm_ahead import Ahead
from llmrs_cli.kernels.packed4 import EPILOGUES, Packed4Matrix
from llmrs_cli.kernels.packed_wide_plans import FEWEST_TOKENS, MOST_TOKENS, PackedWidePlan, plan_for
from tests.helpers.emulate import host
from tests.helpers.launches import Recorder, bits, floats, tensor_map

PLAN = PackedWidePlan(6, 64, 2, 3)


@pytest.fixture(autouse=True)
def plain_map(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(packed_wide, "tensor_map", tensor_map)
    yield


def matrix(layout: Layout) -> Packed4Matrix:
    shape = layout.unit_rows, layout.unit_columns, layout.unit_bytes // 4
    return Packed4Matrix(host(np.zeros(shape, np.uint32)), layout)


def launched(
    plan: PackedWidePlan, m: int, layout: Layout, epilogue: Any = "store", alpha: float = 1.0, **changes: Any
) -> Recorder:
    device, n = Recorder(), layout.rows
    columns = n // 2 if epilogue == "silu" else n
    arrays: dict[str, Any] = {
        "weight": matrix(layout),
        "x": bits(m, layout.columns),
        "out": floats(m, columns) if epilogue in ("add", "logits") else bits(m, columns),
    } | changes
    packed_wide.packed_wide(device, True, plan, epilogue, **arrays, alpha=alpha)
    return device


LAYOUT = Layout(208, 392, 128)


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("plan", [PLAN, PackedWidePlan(2, 32, 4), PackedWidePlan(8, 128, 1, 4)], ids=str)
def test_a_plan_is_the_shape_of_its_launch(plan: PackedWidePlan, epilogue: Any) -> None:
    ((name, shape),) = launched(plan, 100, LAYOUT, epilogue).shapes
    assert name == "packed_wide" and shape.grid == (plan.blocks, 1, 1) and shape.at_once == 1
    assert shape.block == (128 * (plan.warpgroups + 1), 1, 1)
    assert shape.shared == plan.shared_bytes(LAYOUT)


@pytest.mark.parametrize(("m", "fetched"), [(4, 8), (9, 16), (24, 24), (63, 64), (200, 64)])
def test_the_copy_engine_is_told_tiles_of_tokens(m: int, fetched: int) -> None:
    x, bias = bits(m, 392), floats(208)
    (passed,) = launched(PLAN, m, LAYOUT, x=x, bias=bias, alpha=0.5).passed
    assert passed["x"] == (x.data.ptr, m, 392, fetched)
    assert (passed["m"], passed["n"], passed["k"], passed["fetched"]) == (m, 208, 392, fetched)
    assert passed["bias"] == bias.data.ptr and passed["alpha"] == 0.5


def room_ahead(m: int, k: int, parts: int, stride: int) -> Ahead:
    """What is left of M tokens of K values for the norm after them."""
    return Ahead(floats(k), bits(m, k), floats(m, stride), parts)


def test_what_a_norm_needs_reaches_the_kernel() -> None:
    ahead, leaves = room_ahead(100, 392, 25, 28), room_ahead(100, 208, 13, 16)
    (passed,) = launched(PLAN, 100, LAYOUT, "add", ahead=ahead, eps=0.25, leaves=leaves).passed
    assert (passed["squares"], passed["parts"], passed["stride"]) == (ahead.squares.data.ptr, 25, 28)
    assert passed["eps"] == 0.25
    assert passed["norm"] == leaves.norm.data.ptr and passed["normed"] == leaves.values.data.ptr
    assert (passed["left"], passed["left_stride"]) == (leaves.squares.data.ptr, 16)
    (alone,) = launched(PLAN, 100, LAYOUT, "add").passed
    for name in ("squares", "parts", "stride", "eps", "norm", "normed", "left", "left_stride"):
        assert not alone[name], name


@pytest.mark.parametrize(("epilogue", "parts"), [("store", 13), ("add", 12), ("add", 14)])
def test_a_sum_leaves_the_squares_of_each_16_rows(epilogue: Any, parts: int) -> None:
    with pytest.raises(EngineFault, match=f"packed_wide leaves 13 sums of squares after an add, not {parts}"):
        launched(PLAN, 100, LAYOUT, epilogue, leaves=room_ahead(100, 208, parts, 16))


def test_a_norm_of_more_tokens_than_have_room_is_refused() -> None:
    with pytest.raises(EngineFault, match="packed_wide has no room for the factors of 257 tokens"):
        launched(PLAN, 257, LAYOUT, ahead=room_ahead(257, 392, 25, 28))


def test_units_say_all_that_a_kernel_is_compiled_for() -> None:
    unit = packed_wide.unit(True, LAYOUT, PLAN, "silu")
    macros = dict(unit.macros)
    assert macros == {
        "BF16": 1, "GROUP": 128, "WGS": 2, "TOKENS": 64, "STAGES": PLAN.stages(LAYOUT), "SLICES": 3,
        "SPARE": PLAN.spare, "EPILOGUE": 2,
    }  # fmt: skip


@given(
    m=st.integers(FEWEST_TOKENS, MOST_TOKENS),
    n=st.integers(1, 60),
    k=st.integers(1, 300),
    group=st.sampled_from(GROUPS),
    gpus=st.integers(2, 200),
)
def test_a_plan_that_is_chosen_is_served(m: int, n: int, k: int, group: int, gpus: int) -> None:
    layout = Layout(16 * n, 8 * k, group)
    plan = plan_for(m, layout, gpus)
    assert plan is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_wide, "tensor_map", tensor_map)
        ((_, shape),) = launched(plan, m, layout).shapes
    assert shape.grid[0] <= gpus


@pytest.mark.parametrize(
    ("m", "layout", "x"),
    [(20, Layout(200, 392, 128), (20, 392)), (20, Layout(208, 396, 128), (20, 396)), (20, LAYOUT, (21, 392))],
)
def test_sizes_that_do_not_divide_or_agree_are_refused(m: int, layout: Layout, x: tuple[int, int]) -> None:
    with pytest.raises(EngineFault, match="packed_wide cannot serve"):
        launched(PLAN, m, layout, x=bits(*x))


@pytest.mark.parametrize("changes", [{"blocks": 7}, {"slices": 6}])
def test_plans_that_find_no_room_are_refused(changes: dict[str, int]) -> None:
    """A part of a cluster, and more slices than columns."""
    with pytest.raises(EngineFault, match="packed_wide has no place for 20 tokens"):
        launched(replace(PLAN, **changes), 20, LAYOUT)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("out", {"out": bits(100, 207)}),
        ("bias", {"bias": floats(207)}),
        ("packed", {"weight": Packed4Matrix(host(np.zeros((4, 4, 9), np.uint32)), LAYOUT)}),
    ],
)
def test_an_array_that_does_not_fit_is_named(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(EngineFault, match=f"Kernel packed_wide: {name} must be"):
        launched(PLAN, 100, LAYOUT, **changes)
