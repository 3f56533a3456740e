"""What the launcher of layer_wide passes on and refuses, and that its kernel keeps to its registers; no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels import layer_wide
from llmrs_cli.kernels.catalog import HOPPER
from llmrs_cli.kernels.layer_plans import (
    EIGHT,
    MOST_GATES,
    MOST_HELD,
    MOST_ROWS,
    LayerPlan,
    LayerShape,
    held,
    plan_for,
)
from llmrs_cli.kernels.layer_wide import LayerMatrices
from llmrs_cli.kernels.norm_ahead import Ahead
from tests.helpers.compiled import spills
from tests.helpers.launches import Recorder, bits, floats, ints, tensor_map
from tests.kernels.test_layer_plans import of_model

SHAPE = LayerShape(heads=128, hidden=192, ffn=256, qkv=320)
PLAN = LayerPlan(blocks=8, groups=2, slices=2, add_rows=56, gate_rows=64, qkv_rows=80)
PARTS = 4 * 2


class H200(Recorder):
    multiprocessors = 132


@pytest.fixture(autouse=True)
def plain_map(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(layer_wide, "tensor_map", tensor_map)
    yield


def matrices(shape: LayerShape = SHAPE, **changes: Any) -> LayerMatrices:
    o, gate_up, down, qkv = (bits(n, k) for n, k in shape.products)
    return replace(LayerMatrices(o, gate_up, down, qkv), **changes)


def room(m: int, stride: int = PARTS, parts: int = PARTS, hidden: int = SHAPE.hidden) -> Ahead:
    return Ahead(floats(hidden), bits(m, hidden), floats(m, stride), parts)


def operands(m: int = 100, shape: LayerShape = SHAPE) -> dict[str, Any]:
    return {
        "plan": PLAN, "matrices": matrices(shape), "mixed": bits(m, shape.heads), "residual": floats(m, shape.hidden),
        "activated": bits(m, shape.ffn), "mlp": room(m), "after": room(m), "qkv": bits(m, shape.qkv),
        "meeting": ints(2),
    }  # fmt: skip


def launched(values: dict[str, Any]) -> dict[str, Any]:
    device = H200()
    layer_wide.layer_wide(device, True, eps=0.25, **values)
    (passed,) = device.passed
    return passed


def refused(match: str, **changes: Any) -> None:
    device = H200()
    with pytest.raises(EngineFault, match=match):
        layer_wide.layer_wide(device, True, eps=0.25, **{**operands(), **changes})
    assert not device.shapes


def test_a_plan_is_the_shape_of_its_launch() -> None:
    device = H200()
    layer_wide.layer_wide(device, True, eps=0.0, **operands())
    ((name, shape),) = device.shapes
    assert name == "layer_wide" and shape.grid == (8, 1, 1) and shape.block == (384, 1, 1)
    assert shape.shared == PLAN.shared and shape.at_once == 1


def test_units_say_all_that_a_kernel_is_compiled_for() -> None:
    assert dict(layer_wide.unit(True, PLAN).macros) == {
        "BF16": 1, "WGS": 2, "SLICES": 2, "W_STAGES": PLAN.stages, "X_STAGES": 3, "ROWS": 64, "ADD_ROWS": 56,
        "QKV_ROWS": 80,
    }  # fmt: skip


@pytest.mark.parametrize(("m", "fetched"), [(9, 16), (24, 24), (100, 104), (128, 128)])
def test_the_copy_engine_is_told_tiles_of_all_matrices(m: int, fetched: int) -> None:
    values = operands(m)
    passed, weights = launched(values), values["matrices"]
    assert passed["o"] == (weights.o.data.ptr, 192, 128, 56)
    assert passed["gate_up"] == (weights.gate_up.data.ptr, 512, 192, 64)
    assert passed["down"] == (weights.down.data.ptr, 192, 256, 56)
    assert passed["qkv_weight"] == (weights.qkv.data.ptr, 320, 192, 80)
    assert passed["mixed"] == (values["mixed"].data.ptr, m, 128, fetched)
    assert passed["x_mlp"] == (values["mlp"].values.data.ptr, m, 192, fetched)
    assert passed["x_down"] == (values["activated"].data.ptr, m, 256, fetched)
    assert passed["x_next"] == (values["after"].values.data.ptr, m, 192, fetched)
    assert [passed[name] for name in ("m", "h", "c", "f", "q", "fetched")] == [m, 128, 192, 256, 320, fetched]


def test_what_is_changed_and_what_norms_need_reach_the_kernel() -> None:
    gate_up_bias, qkv_bias = floats(512), floats(320)
    values = operands() | {"after": room(100, stride=12)}
    values["matrices"] = matrices(gate_up_bias=gate_up_bias, qkv_bias=qkv_bias)
    passed = launched(values)
    for name in ("residual", "activated", "qkv", "meeting"):
        assert passed[name] == values[name].data.ptr
    for name, left in (("mlp", values["mlp"]), ("next", values["after"])):
        assert passed[f"norm_{name}"] == left.norm.data.ptr
        assert passed[f"values_{name}"] == left.values.data.ptr
        assert passed[f"squares_{name}"] == left.squares.data.ptr
    assert (passed["stride_mlp"], passed["stride_next"], passed["eps"]) == (8, 12, 0.25)
    assert passed["gate_up_bias"] == gate_up_bias.data.ptr and passed["qkv_bias"] == qkv_bias.data.ptr


def test_biases_may_be_absent() -> None:
    passed = launched(operands())
    assert passed["gate_up_bias"] == passed["qkv_bias"] == 0


@pytest.mark.parametrize("leaves", [True, False])
def test_behind_the_last_layer_is_no_qkv(leaves: bool) -> None:
    values = operands() | {"qkv": None, "matrices": matrices(qkv=None)}
    if not leaves:
        values["after"] = None
    passed = launched(values)
    assert passed["q"] == passed["qkv"] == 0 and passed["qkv_weight"] == (0, 0, 0, 0)
    assert bool(passed["norm_next"]) == bool(passed["values_next"]) == leaves


def test_what_a_qkv_needs_comes_with_it() -> None:
    for changes in ({"qkv": None}, {"matrices": matrices(qkv=None)}, {"after": None}):
        refused("qkv takes", **changes)


@pytest.mark.parametrize("name", ["o", "gate_up", "down", "qkv"])
def test_a_matrix_of_other_sizes_is_named(name: str) -> None:
    rows, columns = getattr(matrices(), name).shape
    wrong = bits(rows, columns + 8) if name != "down" else bits(rows + 8, columns)
    if name == "o":  # it says what C and H are: the tokens have no such columns
        refused("layer_wide has no place", matrices=matrices(o=wrong))
    else:
        refused(rf"{name} must be \({rows}, {columns}\)", matrices=matrices(**{name: wrong}))


@pytest.mark.parametrize("m", [129, 0])
def test_tokens_without_a_place_are_refused(m: int) -> None:
    refused("layer_wide has no place", **operands(m))


def test_a_residual_of_other_tokens_is_refused() -> None:
    refused("layer_wide has no place", residual=floats(99, 192))


@pytest.mark.parametrize("changes", [{"blocks": 7}, {"add_rows": 40}, {"qkv_rows": 72}, {"slices": 4}])
def test_plans_without_room_for_all_rows_are_refused(changes: dict[str, int]) -> None:
    refused("layer_wide has no place", plan=replace(PLAN, **changes))


def test_blocks_that_would_wait_for_ever_are_refused() -> None:
    refused("134 blocks do not run at once", plan=replace(PLAN, blocks=134))


def test_blocks_meet_once_for_each_turn() -> None:
    shape, plan = replace(SHAPE, ffn=264), replace(PLAN, blocks=8)
    values = operands(shape=shape) | {"plan": plan, "meeting": ints(3)}
    launched(values)
    refused("meets in 3 words, not in 2", **values | {"meeting": ints(2)})


@pytest.mark.parametrize("name", ["mlp", "after"])
def test_sums_of_squares_need_their_room(name: str) -> None:
    refused("leaves 8 sums of squares", **{name: room(100, stride=12, parts=9)})
    for stride in (4, 10):
        refused("no room for 8 sums", **{name: room(100, stride=stride)})


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("residual", {"residual": floats(100, 184)}),
        ("activated", {"activated": bits(100, 264)}),
        ("qkv", {"qkv": bits(100, 312)}),
        ("meeting", {"meeting": floats(2)}),
        ("values_mlp", {"mlp": replace(room(100), values=bits(99, 192))}),
        ("norm_next", {"after": replace(room(100), norm=floats(191))}),
        ("gate_up_bias", {"matrices": matrices(gate_up_bias=floats(511))}),
    ],
)
def test_an_array_that_does_not_fit_is_named(name: str, changes: dict[str, Any]) -> None:
    refused(f"Kernel layer_wide: {name} must be", **changes)


def test_a_layer_without_qkv_counts_few_rows_of_it() -> None:
    assert matrices(qkv=None).shape == replace(SHAPE, qkv=EIGHT)


# -- the compiler -------------------------------------------------------------------------------------------


def chosen(name: str, m: int) -> LayerPlan:
    plan = plan_for(m, of_model(name), 132)
    assert plan is not None
    return plan


def most(groups: int, slices: int) -> LayerPlan:
    """With as many rows as registers should hold."""
    rows = max(rows for rows in range(16, MOST_ROWS + 1, 8) if held(rows, slices) <= MOST_HELD[groups])
    return LayerPlan(132, groups, slices, rows, MOST_GATES[groups], rows)


COMPILED = [chosen("7b", 64), chosen("3b", 128), chosen("0.5b", 192), most(1, 2), most(2, 8), most(3, 3)]


@pytest.mark.timeout(300)
def test_no_plan_takes_local_memory() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings and nvidia-cuda-nvrtc are not installed")
    assert spills([layer_wide.unit(True, plan) for plan in COMPILED], HOPPER) == []
