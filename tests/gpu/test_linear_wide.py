"""linear_wide.cu against float64: odd and real shapes, plans of every kind, every epilogue. Only Hopper can run it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.qwen_shapes import linears
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.linear_wide import EPILOGUES, linear_wide
from llmrs_cli.kernels.wide_plans import Room, WidePlan
from tests.gpu.halves import TYPES, cp, halves, widened
from tests.gpu.wide_case import Case, build, cheapest, spread

TOKENS = (3, 9, 17, 24, 33, 64, 65, 100, 128, 129, 192, 200, 256)
ODD = [(16, 8), (48, 24), (80, 120), (336, 136), (1008, 904), (176, 1032)]
"""(N, K): no multiples of what a step or a tile has, less than one of either, and a little more."""
REAL = [(True, *linear) for name in ("0.5b", "3b") for linear in linears(name) if linear[2] != "logits"]
REAL += [(False, *linear) for linear in linears("0.5b") if linear[2] != "logits"]


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize(("n", "k"), ODD)
def test_odd_shapes_of_any_number_of_tokens(hopper: CudaDevice, bf16: bool, n: int, k: int) -> None:
    case = Case(bf16, n, k)
    chosen = {m: cheapest(hopper, m, n, k) for m in TOKENS}
    build(hopper, bf16, chosen.values(), EPILOGUES)
    for m, plan in chosen.items():
        for epilogue in EPILOGUES:
            assert case.wrong(hopper, plan, epilogue, m, biased=False) < 1, (m, plan, epilogue)
            assert case.wrong(hopper, plan, epilogue, m, biased=True, alpha=3.0) < 1, (m, plan, epilogue)


@pytest.mark.parametrize(("bf16", "n", "k", "epilogue"), REAL)
def test_long_products_of_models(hopper: CudaDevice, bf16: bool, n: int, k: int, epilogue: Epilogue) -> None:
    case = Case(bf16, n, k)
    chosen = {m: cheapest(hopper, m, n, k) for m in TOKENS}
    build(hopper, bf16, chosen.values(), [epilogue])
    for m, plan in chosen.items():
        assert case.wrong(hopper, plan, epilogue, m, biased=epilogue == "store") < 1, (m, plan)


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize(
    ("groups", "rows", "slices", "room"),
    [
        (1, 64, 1, "all"), (1, 192, 1, "all"), (2, 192, 1, "all"), (3, 176, 1, "all"),
        (1, 176, 1, "most"), (2, 80, 1, "most"),
        (1, 64, 2, "all"), (2, 96, 3, "all"), (3, 112, 4, "all"), (3, 176, 8, "all"),
        (1, 80, 5, "more"), (1, 176, 6, "more"), (2, 64, 7, "more"), (2, 80, 8, "more"),
    ],
)  # fmt: skip
def test_plans_of_every_kind(
    hopper: CudaDevice, bf16: bool, groups: int, rows: int, slices: int, room: Room
) -> None:
    n, k = 1008, 1032
    case = Case(bf16, n, k)
    own = {m: spread(hopper, m, n, groups, rows, slices, room) for m in (17, 129, 200)}
    kinds: tuple[Epilogue, ...] = ("add", "silu") if bf16 else ("add",)
    build(hopper, bf16, own.values(), kinds)
    for m, plan in own.items():
        for epilogue in kinds:
            assert case.wrong(hopper, plan, epilogue, m, biased=True, alpha=0.5) < 1, (m, epilogue)


@pytest.mark.parametrize("epilogue", ["add", "silu"])
def test_blocks_that_take_turns_write_the_same_bits(hopper: CudaDevice, epilogue: Epilogue) -> None:
    case = Case(True, 1008, 520)
    one, few, many = (
        case.run(hopper, WidePlan(blocks, 1, 80), epilogue, 200, biased=True) for blocks in (1, 7, 132)
    )
    assert (one == few).all() and (one == many).all()


@pytest.mark.parametrize("slices", [1, 8])
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_the_same_bits_each_time_and_whatever_the_neighbours(
    hopper: CudaDevice, slices: int, epilogue: Epilogue
) -> None:
    case = Case(True, 336, 1032)
    together, again, alone = (
        case.run(hopper, spread(hopper, m, 336, 1, 64, slices, "all"), epilogue, m, biased=True)
        for m in (200, 200, 33)
    )
    assert (together == again).all() and (together[:33] == alone).all()


def test_gates_that_are_far_off_close_or_open(hopper: CudaDevice) -> None:
    case = Case(True, 336, 136, scale=100.0)
    assert np.abs(case.product).max() > 300
    assert case.wrong(hopper, cheapest(hopper, 64, 336, 136), "silu", 64, biased=False) < 1


def test_float16_saturates(hopper: CudaDevice) -> None:
    weight, _ = halves(np.full((16, 64), 1000.0), False)
    x, _ = halves(np.full((17, 64), -1000.0), False)
    out = cp.zeros((17, 16), cp.uint16)
    linear_wide(hopper, False, cheapest(hopper, 17, 16, 64), "store", weight, x, out)
    assert (widened(out, False) == -65504).all()
