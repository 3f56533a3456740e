"""Rings that the copy engine fills: their kernels keep to registers, and older GPUs get none of it. No GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.kernels import linear_rows, linear_small
from llmrs_cli.kernels.bulk_ring import BULK_ROOM, LEAST_STEPS, ring_bytes, steps_that_fit
from llmrs_cli.kernels.catalog import all_units
from llmrs_cli.kernels.linear_rows import RowsPlan
from llmrs_cli.kernels.linear_small import SmallPlan
from llmrs_cli.kernels.loader import ARCHITECTURES, Unit
from tests.helpers.compiled import spills

UNITS = (
    linear_rows.unit(True, 2, RowsPlan(1, 1, 16, chunk=512, bulk=True)),
    linear_small.unit(True, SmallPlan(1, 8, tiles=2, bulk=True)),
    linear_small.unit(False, SmallPlan(1, 8, tiles=4, bulk=True)),
)


@pytest.mark.timeout(300)
def test_no_kernel_with_such_a_ring_takes_local_memory() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings and nvidia-cuda-nvrtc are not installed")
    assert spills(UNITS, "sm_90a") == []


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_nobody_is_given_one_by_default(arch: str) -> None:
    def in_bulk(unit: Unit) -> bool:
        return ("BULK", 1) in unit.macros

    assert all(map(in_bulk, UNITS)) and not any(map(in_bulk, all_units(arch)))


def test_how_many_steps_there_are_is_no_part_of_a_unit() -> None:
    assert linear_small.unit(True, SmallPlan(1, 8, depth=7, bulk=True)) == UNITS[1]


@given(
    warps=st.integers(1, 16),
    wanted=st.integers(2, 32),
    step=st.integers(1, 1000).map(lambda v: v * 16),
    room=st.integers(0, BULK_ROOM),
)
def test_a_ring_is_as_deep_as_is_wanted_or_as_fits(warps: int, wanted: int, step: int, room: int) -> None:
    steps = steps_that_fit(warps, wanted, step, room)
    assert LEAST_STEPS <= steps <= wanted
    assert steps == LEAST_STEPS or ring_bytes(warps, steps, step) <= room
    assert steps == wanted or ring_bytes(warps, steps + 1, step) > room - 16
    assert ring_bytes(warps, steps, step) % 16 == 0, "what stands behind it is aligned"
