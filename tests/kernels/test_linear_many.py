"""What the launcher of linear_many passes on, and what it refuses before anything runs; no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels import linear_many
from llmrs_cli.kernels.many_plans import ManyEpilogue, ManyPlan, plan_for
from tests.helpers.emulate import host
from tests.helpers.launches import Recorder, bits, floats, plain_maps, written_map

PLAN = ManyPlan(4, 2, 1, 128, "rows", 1, band=2)


@pytest.fixture
def plain() -> Iterator[None]:
    with plain_maps():
        yield


def launched(
    plan: ManyPlan, m: int, n: int, k: int, epilogue: ManyEpilogue = "store", **changes: Any
) -> Recorder:
    device = Recorder()
    columns = n // 2 if epilogue == "silu" else n
    arrays: dict[str, Any] = {
        "weight": bits(n, k),
        "x": bits(m, k),
        "out": floats(m, columns) if epilogue == "add" else bits(m, columns),
    } | changes
    linear_many.linear_many(device, True, plan, epilogue, **arrays)
    return device


@pytest.mark.parametrize("epilogue", linear_many.EPILOGUES)
@pytest.mark.parametrize("plan", [PLAN, replace(PLAN, groups=3, deep=2, shared="nothing")], ids=str)
def test_a_plan_is_the_shape_of_its_launch(plain: None, plan: ManyPlan, epilogue: ManyEpilogue) -> None:
    ((name, shape),) = launched(plan, 512, 256, 192, epilogue).shapes
    assert name == "linear_many" and shape.grid == (plan.blocks, 1, 1) and shape.at_once == 1
    assert shape.block == (128 * (plan.groups + 1), 1, 1) and shape.shared == plan.shared_bytes


@given(
    m=st.integers(257, 9000),
    n=st.integers(1, 300),
    k=st.integers(1, 30),
    epilogue=st.sampled_from(linear_many.EPILOGUES),
    gpus=st.integers(2, 200),
)
def test_a_plan_that_is_chosen_is_served(m: int, n: int, k: int, epilogue: ManyEpilogue, gpus: int) -> None:
    plan = plan_for(m, 16 * n, 8 * k, gpus)
    assert plan is not None
    with plain_maps():
        ((_, shape),) = launched(plan, m, 16 * n, 8 * k, epilogue).shapes
    assert 1 <= shape.grid[0] <= gpus


@pytest.mark.parametrize(
    ("shared", "rows", "tokens"), [("nothing", 128, 128), ("rows", 64, 128), ("tokens", 128, 64)]
)
def test_a_block_brings_its_part_of_both_operands(plain: None, shared: Any, rows: int, tokens: int) -> None:
    weight, x = bits(256, 192), bits(512, 192)
    (passed,) = launched(replace(PLAN, shared=shared), 512, 256, 192, weight=weight, x=x).passed
    assert passed["weight"] == (weight.data.ptr, 256, 192, rows)
    assert passed["x"] == (x.data.ptr, 512, 192, tokens)
    assert (passed["m"], passed["n"], passed["k"], passed["band"]) == (512, 256, 192, PLAN.band)


@pytest.mark.parametrize(
    ("epilogue", "rows", "line"),
    [("store", 128, 128), ("store", 144, 128), ("add", 160, 128), ("add", 144, 64), ("silu", 240, 128)],
)
def test_results_leave_in_boxes_with_long_lines(
    monkeypatch: pytest.MonkeyPatch, plain: None, epilogue: ManyEpilogue, rows: int, line: int
) -> None:
    seen: list[tuple[Any, int, int]] = []

    def spied(matrix: Any, tokens: int, columns: int) -> bytes:
        seen.append((matrix, tokens, columns))
        return written_map(matrix, tokens, columns)

    monkeypatch.setattr(linear_many, "written_map", spied)
    out = floats(512, 480) if epilogue == "add" else bits(512, 240 if epilogue == "silu" else 480)
    launched(replace(PLAN, rows=rows), 512, 480, 192, epilogue, out=out)
    ((matrix, tokens, columns),) = seen
    assert matrix is out and tokens == 16 and columns * out.dtype.itemsize == line
    assert epilogue != "add" or rows % columns == 0


def test_bias_and_factor_are_passed_on(plain: None) -> None:
    bias = floats(256)
    (passed,) = launched(PLAN, 512, 256, 192, bias=bias, alpha=0.5).passed
    assert passed["bias"] == bias.data.ptr and passed["alpha"] == 0.5
    (passed,) = launched(PLAN, 512, 256, 192).passed
    assert passed["bias"] == 0 and passed["alpha"] == 1.0


@pytest.mark.parametrize(("n", "k"), [(256, 36), (250, 64), (248, 64)])
def test_work_that_does_not_divide_is_refused(plain: None, n: int, k: int) -> None:
    with pytest.raises(EngineFault, match=rf"linear_many cannot serve 512 tokens of \({n}, {k}\)"):
        launched(PLAN, 512, n, k)


@pytest.mark.parametrize("blocks", [3, 10])
def test_a_plan_that_does_not_suit_is_refused(plain: None, blocks: int) -> None:
    """Half a cluster, and blocks without a tile: of 512 tokens and 256 rows there are two times two pairs."""
    with pytest.raises(EngineFault, match="linear_many has no place for 512 tokens"):
        launched(replace(PLAN, blocks=blocks), 512, 256, 64)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("weight", floats(256, 64)),
        ("x", host(np.zeros((512, 128), np.uint16))[:, ::2]),
        ("out", bits(512, 240)),
        ("out", floats(512, 256)),
        ("out", bits(511, 256)),
    ],
)
def test_an_array_that_the_copy_engine_would_misread_is_named(plain: None, name: str, array: Any) -> None:
    with pytest.raises(EngineFault, match=f"Kernel linear_many: {name} must be contiguous"):
        launched(PLAN, 512, 256, 64, **{name: array})


def test_a_bias_of_another_size_is_refused(plain: None) -> None:
    with pytest.raises(EngineFault, match="Kernel linear_many: bias must be"):
        launched(PLAN, 512, 256, 64, bias=floats(255))
