"""What the launcher of packed_many passes on, and what it refuses before anything runs; no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels import packed_many
from llmrs_cli.kernels.linear_many import EPILOGUES
from llmrs_cli.kernels.many_plans import ManyEpilogue
from llmrs_cli.kernels.marlin_layout import GROUPS, Layout
from llmrs_cli.kernels.packed4 import Packed4Matrix
from llmrs_cli.kernels.packed_many_plans import PackedManyPlan, plan_for
from tests.helpers.emulate import host
from tests.helpers.launches import Recorder, bits, floats, tensor_map, written_map

PLAN = PackedManyPlan(4, 2, 1, 128, "tokens", 1, band=2)
LAYOUT = Layout(256, 192, 128)


@contextmanager
def maps_of_packed() -> Iterator[None]:
    """The driver makes tensor maps; without one, they are plain."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_many, "tensor_map", tensor_map)
        patch.setattr(packed_many, "written_map", written_map)
        yield


@pytest.fixture(autouse=True)
def plain() -> Iterator[None]:
    with maps_of_packed():
        yield


def matrix(layout: Layout) -> Packed4Matrix:
    shape = layout.unit_rows, layout.unit_columns, layout.unit_bytes // 4
    return Packed4Matrix(host(np.zeros(shape, np.uint32)), layout)


def launched(
    plan: PackedManyPlan, m: int, layout: Layout = LAYOUT, epilogue: ManyEpilogue = "store", **changes: Any
) -> Recorder:
    device, n = Recorder(), layout.rows
    columns = n // 2 if epilogue == "silu" else n
    arrays: dict[str, Any] = {
        "weight": matrix(layout),
        "x": bits(m, layout.columns),
        "out": floats(m, columns) if epilogue == "add" else bits(m, columns),
    } | changes
    packed_many.packed_many(device, True, plan, epilogue, **arrays)
    return device


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("plan", [PLAN, replace(PLAN, deep=2, shared="nothing", helpers=2)], ids=str)
def test_a_plan_is_the_shape_of_its_launch(plan: PackedManyPlan, epilogue: ManyEpilogue) -> None:
    ((name, shape),) = launched(plan, 512, LAYOUT, epilogue).shapes
    assert name == "packed_many" and shape.grid == (plan.blocks, 1, 1) and shape.at_once == 1
    assert shape.block == (128 * (plan.groups + plan.helpers), 1, 1) and shape.shared == plan.shared_bytes


@given(
    m=st.integers(257, 9000),
    n=st.integers(1, 300),
    k=st.integers(1, 30),
    group=st.sampled_from(GROUPS),
    epilogue=st.sampled_from(EPILOGUES),
    gpus=st.integers(2, 200),
)
def test_a_plan_that_is_chosen_is_served(
    m: int, n: int, k: int, group: int, epilogue: ManyEpilogue, gpus: int
) -> None:
    layout = Layout(16 * n, 8 * k, group)
    plan = plan_for(m, layout, gpus)
    assert plan is not None
    ((_, shape),) = launched(plan, m, layout, epilogue).shapes
    assert 1 <= shape.grid[0] <= gpus


@pytest.mark.parametrize(("shared", "tokens"), [("nothing", 128), ("tokens", 64)])
def test_a_block_brings_its_part_of_the_tokens(shared: Any, tokens: int) -> None:
    weight, x = matrix(LAYOUT), bits(512, 192)
    (passed,) = launched(replace(PLAN, shared=shared), 512, weight=weight, x=x).passed
    assert passed["packed"] == weight.units.data.ptr
    assert passed["x"] == (x.data.ptr, 512, 192, tokens)
    assert (passed["m"], passed["n"], passed["k"], passed["band"]) == (512, 256, 192, PLAN.band)


def test_bias_and_factor_are_passed_on() -> None:
    bias = floats(256)
    (passed,) = launched(PLAN, 512, bias=bias, alpha=0.5).passed
    assert passed["bias"] == bias.data.ptr and passed["alpha"] == 0.5
    (passed,) = launched(PLAN, 512).passed
    assert passed["bias"] == 0 and passed["alpha"] == 1.0


def test_units_say_all_that_a_kernel_is_compiled_for() -> None:
    plan = PackedManyPlan(4, 2, 2, 176, "tokens", 0, group=64, helpers=2)
    assert dict(packed_many.unit(False, plan, "silu").macros) == {
        "BF16": 0, "GROUP": 64, "GROUPS": 2, "DEEP": 2, "ROWS": 176, "STAGES": plan.stages, "CODE_STAGES": 2,
        "HELPERS": 2, "ROOM": plan.room, "PAIR": 2, "LAG": 0, "EPILOGUE": 2,
    }  # fmt: skip


@pytest.mark.parametrize(("n", "k"), [(256, 36), (250, 64), (248, 64)])
def test_work_that_does_not_divide_is_refused(n: int, k: int) -> None:
    with pytest.raises(EngineFault, match=rf"packed_many cannot serve \(512, {k}\) tokens of \({n}, {k}\)"):
        launched(PLAN, 512, Layout(n, k, 128))


@pytest.mark.parametrize("changes", [{"blocks": 3}, {"blocks": 10}, {"group": 64}, {"shared": "rows"}])
def test_a_plan_that_does_not_suit_is_refused(changes: dict[str, Any]) -> None:
    """Half a cluster, blocks without a tile (there are four pairs), codes of other groups, rows that nobody shares."""
    with pytest.raises(EngineFault, match="packed_many has no place for 512 tokens"):
        launched(replace(PLAN, **changes), 512)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("x", host(np.zeros((512, 384), np.uint16))[:, ::2]),
        ("out", bits(512, 240)),
        ("out", floats(512, 256)),
        ("out", bits(511, 256)),
    ],
)
def test_an_array_that_the_copy_engine_would_misread_is_named(name: str, array: Any) -> None:
    with pytest.raises(EngineFault, match=f"Kernel packed_many: {name} must be contiguous"):
        launched(PLAN, 512, **{name: array})


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("bias", {"bias": floats(255)}),
        ("packed", {"weight": Packed4Matrix(host(np.zeros((4, 2, 9), np.uint32)), LAYOUT)}),
    ],
)
def test_an_array_of_another_size_is_named(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(EngineFault, match=f"Kernel packed_many: {name} must be"):
        launched(PLAN, 512, **changes)
