"""layer_wide.cu against float64 and against linear_wide: models' layers in a row, odd shapes, plans of every kind. Hopper only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.launch import Shape, ceil_div
from llmrs_cli.kernels.layer_plans import LayerPlan, LayerShape, plan_for, plans, plans_ahead
from llmrs_cli.kernels.layer_wide import unit
from llmrs_cli.kernels.linear_wide import linear_wide
from llmrs_cli.kernels.norm_ahead import Ahead
from llmrs_cli.kernels.rms_norm import rms_norm
from tests.gpu.halves import cp, error, rounding, widened
from tests.gpu.wide_case import LEFT_ALONE, Wide, cheapest
from tests.helpers.layer_case import EPS, Arrays, Layer, bits
from tests.kernels.test_layer_plans import of_model

MOST, BEHIND, MEETING = 192, 8, 8
TOKENS = (9, 64, 65, 128, 129, 192)
BITS = 2 * rounding(True)
"""Of the error of results that are rounded twice on their way."""
ODD = LayerShape(heads=136, hidden=1096, ffn=1208, qkv=904)


@dataclass
class Stack:
    """Two layers in a row, the tokens that attentions leave before each, and what is right."""

    shape: LayerShape
    biased: bool = True

    def __post_init__(self) -> None:
        rng = np.random.default_rng(7)
        self.layers = [Layer(self.shape, self.biased, seed) for seed in range(2)]
        self.first = rng.standard_normal((MOST, self.shape.hidden), np.float32)
        self.mixed, self.wanted = [], []
        residual: Wide = self.first.astype(np.float64)
        for layer in self.layers:
            mixed, mixed64 = bits(rng.standard_normal((MOST, self.shape.heads), np.float32))
            self.mixed.append(cp.asarray(mixed))
            self.wanted.append(layer.wanted(residual, mixed64))
            residual = self.wanted[-1]["residual"]

    def start(self, m: int) -> Any:
        """The residual of M tokens, and behind them what no kernel may write over."""
        residual = cp.full((m + BEHIND, self.shape.hidden), LEFT_ALONE, cp.float32)
        residual[:m] = cp.asarray(self.first[:m])
        return residual


@cache
def stack(name: str) -> Stack:
    return Stack(of_model(name))


def on_gpu(array: Any) -> Any:
    """With room behind 16-bit results of some tokens, which shows whether it is written over."""
    if array.dtype != np.uint16 or len(array) > MOST:
        return cp.asarray(array)
    whole = cp.full((len(array) + BEHIND, array.shape[1]), LEFT_ALONE, cp.uint16)
    whole[: len(array)] = cp.asarray(array)
    return whole[: len(array)]


def is_left_alone(view: Any) -> bool:
    """What lies behind an array of `on_gpu`."""
    whole = view.base
    return bool((whole[len(view) :] == LEFT_ALONE).all())


def arrays_of(layer: Layer, plan: LayerPlan, m: int, **kind: Any) -> Arrays:
    return Arrays(layer, plan, m, on_gpu, **kind)


def results(arrays: Arrays, residual: Any) -> dict[str, Any]:
    """What a launch has made, in float64."""
    found = {"activated": widened(arrays.activated, True), "residual": cp.asnumpy(residual)}
    if arrays.qkv is not None:
        found["qkv"] = widened(arrays.qkv, True)
    if arrays.after is not None:
        squares = cp.asnumpy(arrays.after.squares)
        assert np.isnan(squares[:, arrays.after.parts :]).all()
        found["squares_next"] = squares[:, : arrays.after.parts].sum(axis=1)
        found["values_next"] = widened(arrays.after.values, True)
    return found


def check_stack(device: CudaDevice, case: Stack, plan: LayerPlan, m: int, **kind: Any) -> None:
    """Both layers against float64."""
    residual, meeting = case.start(m), cp.zeros(MEETING, cp.int32)
    for layer, mixed, wanted in zip(case.layers, case.mixed, case.wanted, strict=True):
        arrays = arrays_of(layer, plan, m, **kind)
        arrays.run(device, mixed[:m], residual[:m], meeting)
        assert not meeting.any()
        for name, found in results(arrays, residual[:m]).items():
            assert error(found, wanted[name][:m]) < BITS, (name, m, plan)
        assert (residual[m:] == LEFT_ALONE).all()
        assert all(is_left_alone(made) for made in (arrays.activated, arrays.mlp.values))
        assert arrays.qkv is None or is_left_alone(arrays.qkv)


@pytest.mark.parametrize("name", ["0.5b", "3b", "7b"])
def test_layers_of_models_are_what_their_products_are(hopper: CudaDevice, name: str) -> None:
    case, count = stack(name), hopper.multiprocessors
    hopper.build(tuple(unit(True, plan) for plan in plans_ahead(case.shape, count)))
    for m in TOKENS:
        plan = plan_for(m, case.shape, count)
        assert plan is not None
        check_stack(hopper, case, plan, m)


def chain(device: CudaDevice, layer: Layer, arrays: Arrays, mixed: Any, residual: Any) -> dict[str, Any]:
    """What four launches of linear_wide make."""
    m, (o, gate_up, down, qkv) = (
        len(mixed),
        (cheapest(device, len(mixed), n, k) for n, k in layer.shape.products),
    )
    matrices, c = arrays.matrices, layer.shape.hidden
    activated, out = (cp.zeros((m, n), cp.uint16) for n in (layer.shape.ffn, layer.shape.qkv))

    def room(norm: str, parts: int) -> Ahead:
        squares = cp.zeros((m, ceil_div(parts, 4) * 4), cp.float32)
        return Ahead(cp.asarray(layer.arrays[norm]), cp.zeros((m, c), cp.uint16), squares, parts)

    middle, last = room("norm_mlp", o.parts(c)), room("norm_next", down.parts(c))
    linear_wide(device, True, o, "add", matrices.o, mixed, residual, leaves=middle)
    linear_wide(
        device, True, gate_up, "silu", matrices.gate_up, middle.values, activated, bias=matrices.gate_up_bias,
        ahead=middle, eps=EPS,
    )  # fmt: skip
    linear_wide(device, True, down, "add", matrices.down, activated, residual, leaves=last)
    linear_wide(
        device,
        True,
        qkv,
        "store",
        matrices.qkv,
        last.values,
        out,
        bias=matrices.qkv_bias,
        ahead=last,
        eps=EPS,
    )
    return {
        "activated": widened(activated, True),
        "residual": cp.asnumpy(residual),
        "values_next": widened(last.values, True),
        "qkv": widened(out, True),
    }


@pytest.mark.parametrize("name", ["0.5b", "3b", "7b"])
@pytest.mark.parametrize("m", TOKENS)
def test_one_launch_is_what_four_are(hopper: CudaDevice, name: str, m: int) -> None:
    """But for the order of sums, which may turn the last bit of a rounded value."""
    case, layer = stack(name), stack(name).layers[0]
    plan = plan_for(m, case.shape, hopper.multiprocessors)
    assert plan is not None
    arrays, residual = arrays_of(layer, plan, m), case.start(m)
    arrays.run(hopper, case.mixed[0][:m], residual[:m], cp.zeros(MEETING, cp.int32))
    found = results(arrays, residual[:m])
    for result, wanted in chain(hopper, layer, arrays, case.mixed[0][:m], case.start(m)[:m]).items():
        assert error(found[result], wanted) < rounding(True) / 2, result


@cache
def odd(biased: bool) -> Stack:
    return Stack(ODD, biased)


@pytest.mark.parametrize("m", [13, 100, 177])
def test_odd_shapes(hopper: CudaDevice, m: int) -> None:
    """Clusters without a tile, tiles without all of their rows, slices of unequal length."""
    chosen = {plan.slices: plan for plan in plans(m, ODD, hopper.multiprocessors)}
    own = list(chosen.values())
    assert set(chosen) == {2, 3}  # o has three steps
    hopper.build([unit(True, plan) for plan in own])
    for plan in own:
        for one_room in (True, False):
            check_stack(hopper, odd(one_room), plan, m, one_room=one_room)


@pytest.mark.parametrize("m", [40, 128, 190])
def test_plans_of_every_kind(hopper: CudaDevice, m: int) -> None:
    case = stack("0.5b")
    all_of_them = list(plans(m, case.shape, hopper.multiprocessors))
    fewest = {plan.slices: plan for plan in reversed(all_of_them)}
    most = {plan.slices: plan for plan in all_of_them}
    own = list(dict.fromkeys((*fewest.values(), *most.values())))
    assert len(own) == 14
    hopper.build([unit(True, plan) for plan in own])
    for plan in own:
        check_stack(hopper, case, plan, m)


def test_few_blocks_do_what_many_do(hopper: CudaDevice) -> None:
    """Turns of gate and up, and tiles for all clusters but none to spare."""
    case = odd(True)
    plan = LayerPlan(blocks=20, groups=1, slices=2, add_rows=112, gate_rows=64, qkv_rows=96)
    check_stack(hopper, case, plan, 50)
    check_stack(hopper, case, replace(plan, blocks=66), 50)


@pytest.mark.parametrize("leaves", [True, False])
def test_behind_the_last_layer_is_no_qkv(hopper: CudaDevice, leaves: bool) -> None:
    case = stack("0.5b")
    plan = plan_for(33, case.shape, hopper.multiprocessors)
    assert plan is not None
    arrays, residual = arrays_of(case.layers[0], plan, 33, with_qkv=False), case.start(33)
    if not leaves:
        arrays.after = None
    meeting = cp.zeros(MEETING, cp.int32)
    for _ in range(2):  # the second finds what the first has left of the meeting
        residual[:33] = cp.asarray(case.first[:33])
        arrays.run(hopper, case.mixed[0][:33], residual[:33], meeting)
        found = results(arrays, residual[:33])
        assert ("values_next" in found) == leaves and "qkv" not in found
        for name, value in found.items():
            assert error(value, case.wanted[0][name][:33]) < BITS, name


@pytest.mark.parametrize(("name", "m"), [("0.5b", 64), ("3b", 128), ("7b", 64), ("7b", 192)])
def test_a_recorded_graph_gives_the_same_bits_each_time(hopper: CudaDevice, name: str, m: int) -> None:
    """A hundred times, between other kernels, and one right after the other."""
    case = stack(name)
    plan = plan_for(m, case.shape, hopper.multiprocessors)
    assert plan is not None
    layers = [arrays_of(layer, plan, m) for layer in case.layers]
    first, residual, meeting = (
        cp.asarray(case.first[:m]),
        cp.zeros((m, case.shape.hidden), cp.float32),
        cp.zeros(MEETING, cp.int32),
    )
    normed = cp.zeros((m, case.shape.hidden), cp.uint16)
    mixed = [tokens[:m].copy() for tokens in case.mixed]
    made = [
        residual,
        normed,
        *(array for one in layers for array in (one.activated, one.qkv, one.mlp.values)),
    ]

    def run() -> None:
        cp.copyto(residual, first)
        for one, tokens in zip(layers, mixed, strict=True):
            one.run(hopper, tokens, residual, meeting)
        rms_norm(hopper, True, residual, layers[0].mlp.norm, EPS, normed)
        layers[0].run(hopper, mixed[0], residual, meeting)
        rms_norm(hopper, True, residual, layers[0].mlp.norm, EPS, normed)

    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    with stream:
        run()
        wanted = [array.copy() for array in made]
        stream.begin_capture()
        run()
        graph = stream.end_capture()
        different = cp.zeros(1, cp.int64)
        for _ in range(100):
            for array in made:
                array[...] = 0
            graph.launch(stream)
            for array, right in zip(made, wanted, strict=True):
                different += (array != right).sum()
        stream.synchronize()
        assert int(different[0]) == 0 and not meeting.any()
        assert all(bool(cp.isfinite(array).all()) for array in made if array.dtype == cp.float32)


@pytest.mark.parametrize("slices", range(2, 9))
def test_all_blocks_run_at_once_by_the_drivers_word(hopper: CudaDevice, slices: int) -> None:
    """A grid that does not fit would wait for ever."""
    from cuda.bindings import driver

    shape = of_model("0.5b")
    plan = next(plan for plan in plans(64, shape, hopper.multiprocessors) if plan.slices == slices)
    check_stack(hopper, stack("0.5b"), plan, 64)  # the driver allows it all of its shared memory
    function = hopper._module(unit(True, plan)).get_function("layer_wide")
    launch = Shape((plan.blocks, 1, 1), (128 * (plan.groups + 1), 1, 1), plan.shared, 1)
    config = hopper._config(launch, 0)
    config.numAttrs = 0  # clusters are the kernel's own
    status, clusters = driver.cuOccupancyMaxActiveClusters(function.ptr, config)
    assert int(status) == 0 and clusters * slices >= plan.blocks
