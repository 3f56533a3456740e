"""What the launcher of linear_wide passes on, what it refuses before anything runs, and its kernel on the CPU; no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import bf16_to_f32, f32_to_bf16
from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels import linear_wide
from llmrs_cli.kernels.linear_wide import Ahead
from llmrs_cli.kernels.wide_plans import MOST_TOKENS, WidePlan, plan_for
from tests.helpers.emulate import EmulatedDevice, host
from tests.helpers.launches import Recorder, bits, floats, plain_maps

ALONE = WidePlan(10, 2, 80)
SHARED = WidePlan(2 * 4 * 3, 1, 64, 3)
"""Slices of 65 to 128 tokens of 256 rows."""
BROAD = WidePlan(2, 1, 288)
BROAD_SHARED = WidePlan(2 * 3, 1, 288, 3)
"""Slices of up to 64 tokens of 289 to 576 rows."""


@pytest.fixture
def no_maps() -> Iterator[None]:
    with plain_maps():
        yield


def launched(plan: WidePlan, m: int, n: int, k: int, epilogue: Any = "store", **changes: Any) -> Recorder:
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
    ((name, shape),) = launched(plan, 100, 256, 192, epilogue).shapes
    assert name == "linear_wide" and shape.grid == (plan.blocks, 1, 1) and shape.at_once == 1
    assert shape.block == (128 * (plan.groups + 1), 1, 1) and shape.shared == plan.shared


@given(m=st.integers(1, MOST_TOKENS), n=st.integers(1, 300), k=st.integers(1, 300), gpus=st.integers(2, 200))
def test_a_plan_that_is_chosen_is_served(m: int, n: int, k: int, gpus: int) -> None:
    plan = plan_for(m, 16 * n, 8 * k, gpus)
    with plain_maps():
        shapes = [] if plan is None else launched(plan, m, 16 * n, 8 * k).shapes
    assert all(shape.grid[0] <= gpus for _, shape in shapes)


@pytest.mark.parametrize(("m", "fetched"), [(17, 24), (24, 24), (100, 104), (200, 128)])
def test_the_copy_engine_is_told_tiles_of_both_matrices(no_maps: None, m: int, fetched: int) -> None:
    weight, x = bits(256, 192), bits(m, 192)
    (passed,) = launched(ALONE, m, 256, 192, weight=weight, x=x).passed
    assert passed["weight"] == (weight.data.ptr, 256, 192, ALONE.rows)
    assert passed["x"] == (x.data.ptr, m, 192, fetched)
    assert (passed["m"], passed["n"], passed["k"], passed["fetched"]) == (m, 256, 192, fetched)


def test_a_product_alone_neither_takes_nor_leaves_a_norm(no_maps: None) -> None:
    bias = floats(256)
    (passed,) = launched(ALONE, 100, 256, 192, "add", bias=bias, alpha=0.5).passed
    assert passed["bias"] == bias.data.ptr and passed["alpha"] == 0.5
    for name in ("squares", "parts", "stride", "eps", "norm", "normed", "left", "left_stride"):
        assert not passed[name], name
    assert not launched(ALONE, 100, 256, 192).passed[0]["bias"]


def test_what_a_norm_needs_reaches_the_kernel(no_maps: None) -> None:
    ahead, leaves = room_ahead(100, 192, 11, 12), room_ahead(100, 256, SHARED.parts(256), 16)
    (passed,) = launched(SHARED, 100, 256, 192, "add", ahead=ahead, eps=0.25, leaves=leaves).passed
    assert (passed["squares"], passed["parts"], passed["stride"]) == (ahead.squares.data.ptr, 11, 12)
    assert passed["eps"] == 0.25
    assert passed["norm"] == leaves.norm.data.ptr and passed["normed"] == leaves.values.data.ptr
    assert (passed["left"], passed["left_stride"]) == (leaves.squares.data.ptr, 16)


def test_a_tile_of_more_rows_than_a_box_has_comes_in_two(no_maps: None) -> None:
    weight = bits(400, 192)
    (passed,) = launched(BROAD, 100, 400, 192, weight=weight).passed
    assert passed["weight"] == (weight.data.ptr, 400, 192, 144)


@pytest.mark.parametrize(("n", "k"), [(256, 36), (250, 64), (248, 64)])
def test_work_that_does_not_divide_is_refused(no_maps: None, n: int, k: int) -> None:
    with pytest.raises(EngineFault, match=rf"linear_wide cannot serve 20 tokens of \({n}, {k}\)"):
        launched(WidePlan(2, 1, 64), 20, n, k)


def test_a_matrix_of_other_columns_is_refused(no_maps: None) -> None:
    with pytest.raises(EngineFault, match=r"linear_wide cannot serve 20 tokens of \(256, 72\)"):
        launched(ALONE, 20, 256, 64, weight=bits(256, 72))


@pytest.mark.parametrize(("m", "blocks"), [(100, 25), (100, 21), (100, 27), (64, 24), (129, 24)])
def test_blocks_that_share_columns_have_one_tile_each(no_maps: None, m: int, blocks: int) -> None:
    with pytest.raises(EngineFault, match=f"linear_wide has no place for {m} tokens"):
        launched(replace(SHARED, blocks=blocks), m, 256, 192)


@pytest.mark.parametrize("epilogue", ["store", "silu", "logits"])
def test_only_a_sum_leaves_something_for_a_norm(no_maps: None, epilogue: Any) -> None:
    leaves = room_ahead(100, 256, SHARED.parts(256), 16)
    with pytest.raises(EngineFault, match="leaves 12 sums of squares after an add"):
        launched(SHARED, 100, 256, 192, epilogue, leaves=leaves)


@pytest.mark.parametrize(("parts", "stride"), [(16, 8), (11, 16), (13, 16)])
def test_sums_of_squares_are_as_many_as_the_plan_leaves(no_maps: None, parts: int, stride: int) -> None:
    with pytest.raises(EngineFault, match=f"leaves 12 sums of squares after an add, not {parts}"):
        launched(SHARED, 100, 256, 192, "add", leaves=room_ahead(100, 256, parts, stride))


@pytest.mark.parametrize("stride", [8, 13])
def test_sums_of_squares_need_their_room_in_whole_vectors(no_maps: None, stride: int) -> None:
    with pytest.raises(EngineFault, match=f"has no room for 12 sums in rows of {stride}"):
        launched(SHARED, 100, 256, 192, "add", leaves=room_ahead(100, 256, 12, stride))
    with pytest.raises(EngineFault, match=f"has no room for 12 sums in rows of {stride}"):
        launched(SHARED, 100, 256, 192, ahead=room_ahead(100, 192, 12, stride))


def test_a_slice_without_columns_is_refused(no_maps: None) -> None:
    with pytest.raises(EngineFault, match="linear_wide has no place"):
        launched(SHARED, 100, 256, 64)


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
        launched(SHARED, 100, 256, 192, "add", **changes)


# ---- the kernel itself, on the CPU ----------------------------------------------------------------------------


class Case:
    """Random matrices of bfloat16 and what is right in float64; behind M tokens is what no kernel may write over."""

    def __init__(self, m: int, n: int, k: int) -> None:
        rng = np.random.default_rng(m + n + k)
        self.m, self.n = m, n
        self.weight = host(f32_to_bf16((rng.standard_normal((n, k)) / k**0.5).astype(np.float32)))
        self.x = host(f32_to_bf16(rng.standard_normal((m, k)).astype(np.float32)))
        self.bias = host(rng.standard_normal(n).astype(np.float32))
        self.residual = rng.standard_normal((m + 3, n)).astype(np.float32)
        self.product = wide(self.x) @ wide(self.weight).T + self.bias

    def run(self, gpu: EmulatedDevice, plan: WidePlan, epilogue: Any, **handed: Any) -> NDArray[Any]:
        """What the kernel writes of M tokens, and of none behind them."""
        columns = self.n // 2 if epilogue == "silu" else self.n
        kind = np.float32 if epilogue in ("add", "logits") else np.uint16
        out = host(self.residual if epilogue == "add" else np.full((self.m + 3, columns), 0x4321, kind))
        behind, own = out[self.m :].copy(), host(out[: self.m])
        out = host(np.concatenate([own, behind]))
        linear_wide.linear_wide(
            gpu, True, plan, epilogue, self.weight, self.x, out[: self.m], bias=self.bias, **handed
        )
        assert (out[self.m :] == behind).all()
        return np.asarray(out[: self.m])

    def check(self, epilogue: Any, out: NDArray[Any]) -> None:
        wanted = self.product
        if epilogue == "silu":
            gate, up = (wanted.reshape(self.m, -1, 2, 8)[:, :, i].reshape(self.m, -1) for i in range(2))
            wanted = gate / (1 + np.exp(-gate)) * up
        if epilogue == "add":
            wanted = wanted + self.residual[: self.m]
        found = out if out.dtype == np.float32 else wide(out)
        np.testing.assert_allclose(found, wanted, rtol=2**-7 if out.dtype == np.uint16 else 0, atol=1e-5)


def wide(values: NDArray[Any]) -> NDArray[np.float64]:
    return bf16_to_f32(np.asarray(values)).astype(np.float64)


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> EmulatedDevice:
    return EmulatedDevice(tmp_path_factory.mktemp("emulated"), hopper=True, together=True)


@pytest.mark.parametrize(
    ("plan", "epilogue"),
    [
        (WidePlan(15, 1, 80, 3), "add"), (BROAD, "silu"), (WidePlan(1, 2, 288), "store"),
        (BROAD_SHARED, "add"), (WidePlan(8, 1, 256, 4), "logits"),
    ],
    ids=str,
)  # fmt: skip
def test_tiles_of_every_breadth(no_maps: None, gpu: EmulatedDevice, plan: WidePlan, epilogue: Any) -> None:
    """A second tile of few rows, of which those of 288 have none in its second half; tokens and columns that fill none."""
    case = Case(35, 400, 456 if plan.slices > 1 else 200)
    case.check(epilogue, case.run(gpu, plan, epilogue))


def test_bits_do_not_depend_on_the_breadth_of_a_tile(no_maps: None, gpu: EmulatedDevice) -> None:
    case = Case(20, 304, 72)
    narrow, broad = (case.run(gpu, WidePlan(2, 1, rows), "silu") for rows in (80, 288))
    assert (narrow == broad).all()


def test_broad_tiles_leave_what_the_next_norm_needs(no_maps: None, gpu: EmulatedDevice) -> None:
    case = Case(33, 304, 264)
    leaves = Ahead(host(case.bias), bits(33, 304), floats(33, 8), parts=6)
    out = case.run(gpu, BROAD_SHARED, "add", leaves=leaves)
    case.check("add", out)
    np.testing.assert_allclose(wide(leaves.values), out * np.asarray(case.bias), rtol=2**-8, atol=1e-30)
    np.testing.assert_allclose(leaves.squares.sum(axis=1), (out**2).sum(axis=1), rtol=1e-5)
