"""The products between two attentions, run on the CPU from their CUDA source, against float64: blocks meet in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from llmrs_cli.engine.weights.packed import bf16_to_f32
from llmrs_cli.kernels import layer_wide
from llmrs_cli.kernels.layer_plans import LayerPlan, LayerShape
from tests.helpers.emulate import EmulatedDevice, host
from tests.helpers.launches import tensor_map
from tests.helpers.layer_case import Arrays, Layer, bits, error

TWO = LayerPlan(blocks=4, groups=1, slices=2, add_rows=56, gate_rows=64, qkv_rows=24)
"""Two clusters of two; an odd number of eights."""
FOUR = LayerPlan(blocks=8, groups=2, slices=4, add_rows=104, gate_rows=80, qkv_rows=56)
SMALL = LayerShape(heads=136, hidden=88, ffn=352, qkv=40)
"""Slices of one and two steps, eleven tiles of gate and up for four blocks, the last rows of qkv no whole tile."""
BITS = 8e-3
"""Of the error of results that are rounded twice on their way."""


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> EmulatedDevice:
    folder = tmp_path_factory.mktemp("emulated")
    return EmulatedDevice(folder, hopper=True, arch=900, together=True, multiprocessors=132)


@pytest.fixture(autouse=True)
def plain_map(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(layer_wide, "tensor_map", tensor_map)
    yield


class Step:
    """M tokens after an attention, on the device that is played."""

    def __init__(self, m: int, shape: LayerShape) -> None:
        rng = np.random.default_rng(m)
        mixed, self.mixed64 = bits(rng.standard_normal((m, shape.heads)))
        self.first = rng.standard_normal((m, shape.hidden)).astype(np.float32)
        self.mixed, self.residual = host(mixed), host(self.first)
        self.meeting = host(np.zeros(8, np.int32))

    def run(self, gpu: EmulatedDevice, arrays: Arrays) -> dict[str, Any]:
        """What the launch makes of it."""
        self.residual[...] = self.first
        arrays.run(gpu, self.mixed, self.residual, self.meeting)
        assert (self.meeting == 0).all()
        after = arrays.after
        found = {"activated": bf16_to_f32(arrays.activated), "residual": self.residual.copy()}
        if arrays.qkv is not None:
            found["qkv"] = bf16_to_f32(arrays.qkv)
        if after is not None:
            found["values_next"] = bf16_to_f32(after.values)
            found["squares_next"] = after.squares[:, : after.parts].sum(axis=1)
            assert np.isnan(after.squares[:, after.parts :]).all()
        return found


def check(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert {name: error(value, wanted[name]) for name, value in found.items()} == pytest.approx(
        dict.fromkeys(found, 0.0), abs=BITS
    )


@pytest.mark.parametrize(
    ("m", "shape", "plan", "biased"),
    [
        (9, SMALL, TWO, True),
        (64, replace(SMALL, heads=264, qkv=48), TWO, False),
        (100, LayerShape(heads=256, hidden=200, ffn=264, qkv=112), FOUR, True),
        (
            20,
            LayerShape(heads=200, hidden=208, ffn=200, qkv=8),
            replace(FOUR, groups=1, qkv_rows=16, add_rows=208),
            True,
        ),
    ],
    ids=["few", "whole", "two warpgroups", "clusters and slices without rows"],
)
def test_a_layer_is_what_its_products_are(
    gpu: EmulatedDevice, m: int, shape: LayerShape, plan: LayerPlan, biased: bool
) -> None:
    layer, step = Layer(shape, biased), Step(m, shape)
    found = step.run(gpu, Arrays(layer, plan, m, host, one_room=biased))
    assert len(found) == 5
    check(found, layer.wanted(step.first.astype(np.float64), step.mixed64))


def test_behind_the_last_layer_is_no_qkv(gpu: EmulatedDevice) -> None:
    layer, step = Layer(SMALL, True), Step(17, SMALL)
    arrays = Arrays(layer, TWO, 17, host, with_qkv=False)
    wanted = layer.wanted(step.first.astype(np.float64), step.mixed64)
    found = step.run(gpu, arrays)
    assert "qkv" not in found and "values_next" in found
    check(found, wanted)
    arrays.after = None
    again = step.run(gpu, arrays)
    assert np.array_equal(again["residual"], found["residual"])


def test_the_order_of_threads_and_launches_before_change_no_bit(gpu: EmulatedDevice) -> None:
    layer, step = Layer(SMALL, True), Step(33, SMALL)
    arrays = Arrays(layer, TWO, 33, host)
    first, *others = (step.run(gpu, arrays) for _ in range(4))
    for again in others:
        for name, value in first.items():
            assert np.array_equal(value, again[name]), name


def test_layers_follow_each_other_in_the_same_arrays(gpu: EmulatedDevice) -> None:
    step, residual = Step(12, SMALL), np.zeros(0)
    arrays = [Arrays(Layer(SMALL, False, seed), TWO, 12, host) for seed in range(2)]
    residual = step.first.astype(np.float64)
    for one in arrays:
        one.run(gpu, step.mixed, step.residual, step.meeting)
        wanted = one.layer.wanted(residual, step.mixed64)
        assert one.qkv is not None and error(bf16_to_f32(one.qkv), wanted["qkv"]) < BITS
        residual = wanted["residual"]
    assert error(step.residual, residual) < BITS
