"""Which kernels are built before a model's first step; on a GPU that only pretends."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from llmrs_cli.kernels.marlin_layout import Layout
from tests.helpers.fake_cuda import cuda_backend

GATE_UP, DOWN = Layout(4864, 896, 128), Layout(896, 2432, 128)


@pytest.fixture(scope="module")
def room() -> Iterator[Any]:
    with cuda_backend():
        yield sys.modules["llmrs_cli.engine.backends.cuda_units"]


def stems(room: Any, arch: str = "sm_90a", most: int = 2048, copied: bool = False) -> set[str]:
    """Of what a 4-bit model with a 16-bit head needs."""
    noted = room.ModelUnits(copied=copied)
    noted.add_packed(GATE_UP, "gate_up")
    noted.add_packed(DOWN, "down")
    noted.add_dense((5008, 896), "head")
    return {unit.stem for unit in noted.units(False, 64, arch, 132, most)}


def test_many_tokens_have_kernels_for_codes_or_for_their_copies(room: Any) -> None:
    plain, copied = stems(room), stems(room, copied=True)
    assert plain - copied == {"packed_many"} and copied - plain == {"linear_many"}


def test_only_hopper_has_kernels_of_its_own(room: Any) -> None:
    assert not {"packed_wide", "packed_many", "linear_wide"} & stems(room, "sm_89")


def test_where_bits_are_fixed_many_tokens_have_no_kernels_of_their_own(room: Any) -> None:
    assert stems(room) - stems(room, most=0) == {"packed_many", "linear_wide"}
    assert stems(room, copied=True) - stems(room, most=0, copied=True) == {"linear_many", "linear_wide"}


def test_a_place_that_no_kernel_asks_for_counts_its_group_alone(room: Any) -> None:
    noted = room.ModelUnits()
    noted.add_packed(DOWN, "elsewhere")
    noted.add_dense((8, 8), "elsewhere")
    assert (noted.groups, noted.packed, noted.dense) == ({128}, set(), set())
