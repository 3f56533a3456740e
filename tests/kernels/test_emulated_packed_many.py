"""4-bit products of many tokens, run on the CPU from their CUDA source: against float64, and bit by bit against linear_many."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.kernels.linear_many import linear_many
from llmrs_cli.kernels.many_plans import ManyEpilogue, ManyPlan
from llmrs_cli.kernels.packed_many import packed_many
from llmrs_cli.kernels.packed_many_plans import PackedManyPlan
from llmrs_cli.kernels.silu_mul import headroom
from tests.helpers.emulate import EmulatedDevice, HostArray, host
from tests.helpers.launches import plain_maps
from tests.kernels.test_packed_linear import bits, make, values_of
from tests.kernels.test_packed_many import maps_of_packed

NAN, ALONE = 0x7FFF, 0x4321
"""Bits of a NaN in either type, and of what no kernel may write over."""


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedDevice]:
    with plain_maps(), maps_of_packed():
        yield EmulatedDevice(tmp_path_factory.mktemp("emulated"), hopper=True, together=True)


class Case:
    """Random codes and M tokens; those behind are NaN, and what they would write is watched."""

    def __init__(self, m: int, n: int, k: int, group: int, bf16: bool = False) -> None:
        rng = np.random.default_rng(m + n + k)
        self.m, self.n, self.bf16 = m, n, bf16
        canonical, self.weight = make(n, k, group)
        self.dense = host(bits(canonical.dequantise(), bf16))
        self.x = host(np.full((m + 40, k), NAN, np.uint16))
        self.x[:m] = bits(rng.standard_normal((m, k)).astype(np.float32), bf16)
        self.bias = host(rng.standard_normal(n).astype(np.float32))
        self.residual = rng.standard_normal((m + 40, n)).astype(np.float32)

    def run(
        self, gpu: EmulatedDevice, plan: ManyPlan, epilogue: ManyEpilogue, alpha: float = 1.0, tokens: int = 0
    ) -> NDArray[Any]:
        """What is written of all tokens, or of the first ones: from codes, or by linear_many from their values."""
        m = tokens or self.m
        out = host(np.full((m + 40, self.n // 2 if epilogue == "silu" else self.n), ALONE, np.uint16))
        if epilogue == "add":
            out = host(self.residual[: m + 40])
        behind, x = np.array(out[m:]), self.x[:m]
        if isinstance(plan, PackedManyPlan):
            packed_many(gpu, self.bf16, plan, epilogue, self.weight, x, out[:m], bias=self.bias, alpha=alpha)
        else:
            linear_many(gpu, self.bf16, plan, epilogue, self.dense, x, out[:m], bias=self.bias, alpha=alpha)
        assert np.array_equal(out[m:], behind)
        return np.array(out[:m])

    def check(self, epilogue: ManyEpilogue, found: NDArray[Any], alpha: float = 1.0) -> None:
        product = values_of(self.x[: self.m], self.bf16) @ values_of(self.dense, self.bf16).T
        wanted = product * alpha + self.bias
        if epilogue == "add":
            np.testing.assert_allclose(found, wanted + self.residual[: self.m], rtol=1e-5, atol=1e-4)
            return
        if epilogue == "silu":
            gate, up = np.moveaxis(wanted.reshape(self.m, -1, 2, 8), 2, 0).reshape(2, self.m, -1)
            wanted = gate / (1 + np.exp(-gate)) * up * headroom(self.bf16)
        step = 2.0**-8 if self.bf16 else 2.0**-11
        np.testing.assert_allclose(values_of(found, self.bf16), wanted, rtol=step, atol=1e-4)


PAIRS = PackedManyPlan(2, 2, 1, 64, "tokens", 1, band=2)
"""Two blocks with several turns each."""
THREE = PackedManyPlan(2, 3, 1, 144, "nothing", 2, group=64)
"""Blocks of three warpgroups by themselves."""
WIDE = ManyPlan(2, 2, 1, 64, "nothing", 1, band=2)
"""Likewise, of linear_many."""


@pytest.mark.parametrize(
    ("plan", "m", "n", "k", "bf16", "epilogue"),
    [
        (PAIRS, 300, 208, 136, False, "add"),
        (THREE, 200, 160, 200, True, "add"),
        (PackedManyPlan(4, 2, 1, 192, "tokens", 0, group=32, helpers=2), 200, 496, 72, True, "silu"),
        (PackedManyPlan(2, 2, 2, 176, "tokens", 2, group=128, helpers=2), 257, 304, 456, False, "store"),
    ],
    ids=["pairs", "three warpgroups", "more that widen", "two tiles of tokens each"],
)
def test_tiles_groups_and_epilogues_of_every_kind(
    gpu: EmulatedDevice,
    plan: PackedManyPlan,
    m: int,
    n: int,
    k: int,
    bf16: bool,
    epilogue: ManyEpilogue,
) -> None:
    """The last turns are ragged: tokens, rows and columns that fill no tile; none at all for one block."""
    case = Case(m, n, k, plan.group, bf16)
    case.check(epilogue, case.run(gpu, plan, epilogue, alpha=0.5), alpha=0.5)


def test_bits_are_those_of_linear_many_with_the_values_of_the_codes(gpu: EmulatedDevice) -> None:
    case = Case(300, 208, 136, 128)
    assert np.array_equal(case.run(gpu, PAIRS, "add"), case.run(gpu, WIDE, "add"))


@pytest.mark.parametrize(("plan", "bf16"), [(PAIRS, False), (THREE, True)], ids=["f16", "bf16"])
def test_codes_are_widened_to_the_bits_of_a_dequantised_matrix(
    gpu: EmulatedDevice, plan: PackedManyPlan, bf16: bool
) -> None:
    """What tokens that are ones of one column each give is the matrix."""
    case = Case(200, 160, 200, plan.group, bf16)
    case.x[:200] = bits(np.eye(200, dtype=np.float32), bf16)
    case.bias[:], case.residual[:] = 0, 0
    assert np.array_equal(case.run(gpu, plan, "add"), values_of(case.dense, bf16).T)


@pytest.mark.parametrize("group", [384, 1032])
def test_groups_of_several_tiles_and_of_all_columns(gpu: EmulatedDevice, group: int) -> None:
    case = Case(20, 80, 1032, group)
    case.check("add", case.run(gpu, PAIRS, "add"))


def at_the_end_of_memory(values: NDArray[Any]) -> HostArray:
    """A copy of `values` behind which nobody may read."""
    size = -(-values.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = np.frombuffer(mmap.mmap(-1, size + mmap.PAGESIZE), np.uint8)
    behind = ctypes.c_void_p(memory.ctypes.data + size)
    assert ctypes.CDLL(None).mprotect(behind, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    out = memory[size - values.nbytes : size].view(values.dtype).reshape(values.shape)
    out[...] = values
    return out.view(HostArray)


def test_nothing_is_read_behind_the_last_tile_of_codes(gpu: EmulatedDevice) -> None:
    """Of 64 rows, as many as a tile has, where a pair of blocks has twice as many."""
    case = Case(20, 64, 136, 128)
    case.weight = replace(case.weight, units=at_the_end_of_memory(case.weight.units))
    case.check("add", case.run(gpu, PAIRS, "add"))


def test_one_token_and_one_step(gpu: EmulatedDevice) -> None:
    case = Case(1, 16, 8, 128)
    case.check("add", case.run(gpu, PAIRS, "add"))


def test_the_order_of_threads_tiles_and_blocks_changes_nothing(gpu: EmulatedDevice) -> None:
    case = Case(300, 208, 136, 128)
    first, again, more, other = (
        case.run(gpu, plan, "add")
        for plan in (PAIRS, PAIRS, replace(PAIRS, blocks=6), replace(PAIRS, band=1))
    )
    for found in (again, more, other):
        assert np.array_equal(first, found)


def test_the_bits_of_a_token_do_not_depend_on_its_company(gpu: EmulatedDevice) -> None:
    case = Case(300, 208, 136, 128)
    together, few = case.run(gpu, PAIRS, "add"), case.run(gpu, PAIRS, "add", tokens=70)
    assert np.array_equal(together[:70], few)


def test_a_scale_that_float16_has_no_room_for_saturates(gpu: EmulatedDevice) -> None:
    """Codes of 15, zeros of 0 and the largest scale, for one row of ones."""
    case = Case(1, 16, 8, 128)
    tile = case.weight.units.reshape(4, -1)[0]
    tile[:256], tile[256:] = 0xFFFFFFFF, 0x7BFF
    case.x[0] = 0
    case.x[0, 0] = 0x3C00
    case.bias[:] = 0
    case.residual[:] = 0
    assert (case.run(gpu, PAIRS, "add") == 65504).all()
