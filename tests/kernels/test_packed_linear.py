"""The 4-bit kernels on a CPU that plays the GPU: whole launches, against the canonical weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import Packed4, bf16_to_f32, f32_to_bf16
from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.dequantise import dequantise
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.marlin_layout import Layout, pack, tile_group
from llmrs_cli.kernels.packed4 import Packed4Matrix, Scratch
from llmrs_cli.kernels.packed_large import TilePlan, packed_large
from llmrs_cli.kernels.packed_large import scratch_sizes as tile_scratch
from llmrs_cli.kernels.packed_small import StreamPlan, packed_small, scratch_sizes
from llmrs_cli.kernels.repack import compare, repack
from llmrs_cli.kernels.silu_mul import headroom
from tests.helpers.canonical import packed4
from tests.helpers.emulate import EmulatedDevice, host


@pytest.fixture(scope="session")
def device(tmp_path_factory: pytest.TempPathFactory) -> EmulatedDevice:
    return EmulatedDevice(tmp_path_factory.mktemp("emulated"))


def make(rows: int, columns: int, group: int) -> tuple[Packed4, Packed4Matrix]:
    w = packed4(np.random.default_rng(rows + columns), rows, columns, group)
    own = tile_group(group, columns)
    assert own is not None and w.zeros is not None
    units = pack(w.codes, w.scales.astype(np.float16), w.zeros, group, columns)
    return w, Packed4Matrix(host(units.view(np.uint32)), Layout(rows, columns, own))


def bits(values: NDArray[np.float32], bf16: bool) -> NDArray[np.uint16]:
    return f32_to_bf16(values) if bf16 else values.astype(np.float16).view(np.uint16)


def values_of(halves: NDArray[Any], bf16: bool) -> NDArray[np.float64]:
    return (bf16_to_f32(halves) if bf16 else halves.view(np.float16)).astype(np.float64)


# -- dequantise ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bf16", "group"), [(True, 32), (False, 64)])
def test_a_dequantised_matrix_is_the_canonical_one_rounded(
    device: EmulatedDevice, bf16: bool, group: int
) -> None:
    w, matrix = make(150, 200, group)
    out = host(np.full((150, 200), 0x7FC0, np.uint16))
    dequantise(device, bf16, matrix, out)
    assert np.array_equal(out, bits(w.dequantise(), bf16))


def test_a_part_of_a_matrix_is_dequantised(device: EmulatedDevice) -> None:
    w, matrix = make(150, 200, 64)
    out = host(np.full((86, 72), 0x7FC0, np.uint16))
    dequantise(device, False, matrix, out, first=64, left=128)
    assert np.array_equal(out, bits(w.dequantise()[64:, 128:], False))


@pytest.mark.parametrize(
    ("rows", "columns", "first", "left"), [(64, 64, 8, 0), (64, 64, 0, 64), (64, 12, 0, 0), (65, 64, 128, 0)]
)
def test_a_part_that_no_units_make_is_refused(
    device: EmulatedDevice, rows: int, columns: int, first: int, left: int
) -> None:
    _, matrix = make(150, 200, 64)
    with pytest.raises(EngineFault, match="of a 4-bit"):
        dequantise(device, False, matrix, host(np.zeros((rows, columns), np.uint16)), first, left)


# -- repack -------------------------------------------------------------------------------------------------


def canonical(w: Packed4) -> tuple[Any, Any, Any]:
    assert w.zeros is not None
    return host(w.codes.view(np.uint32)), host(w.scales.view(np.uint16)), host(w.zeros.astype(np.uint16))


@pytest.mark.parametrize(
    ("rows", "columns", "group"), [(150, 200, 64), (20, 264, 264), (64, 512, 256), (70, 96, 32)]
)
def test_tiles_made_on_the_device_are_those_made_on_the_host(
    device: EmulatedDevice, rows: int, columns: int, group: int
) -> None:
    w, matrix = make(rows, columns, group)
    found = Packed4Matrix(host(np.full_like(matrix.units, 0xDEADBEEF)), matrix.layout)
    repack(device, False, *canonical(w), group, found)
    assert np.array_equal(found.units, matrix.units)


def test_a_wrong_tile_is_found(device: EmulatedDevice) -> None:
    w, matrix = make(150, 200, 64)
    values, wrong = host(np.zeros((150, 200), np.uint16)), host(np.zeros(1, np.int32))
    dequantise(device, False, matrix, values)
    compare(device, False, *canonical(w), w.group, values, wrong)
    assert wrong[0] == 0
    values[149, 199] ^= 1
    values[7, 8:11] ^= 0x8000
    compare(device, False, *canonical(w), w.group, values, wrong)
    assert wrong[0] == 4


def test_codes_that_do_not_fit_the_tiles_are_refused(device: EmulatedDevice) -> None:
    w, matrix = make(150, 200, 64)
    with pytest.raises(EngineFault, match="No tiles of"):
        repack(device, False, *canonical(w), 32, matrix)
    with pytest.raises(EngineFault, match="No canonical codes"):
        compare(
            device,
            False,
            *canonical(w),
            64,
            host(np.zeros((150, 192), np.uint16)),
            host(np.zeros(1, np.int32)),
        )


# -- products -----------------------------------------------------------------------------------------------

EXACT = 2e-5
"""Bound of ‖Δy‖ / ‖y‖ where codes are exact, on float32 results."""


def poisoned(*shape: int, wide: bool) -> Any:
    return host(np.full(shape, np.nan, np.float32) if wide else np.full(shape, 0x7FFF, np.uint16))


def error(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def rounding(bf16: bool) -> float:
    return 4e-3 if bf16 else 5e-4


def room(partials: int, arrivals: int) -> Scratch:
    return Scratch(host(np.full(partials, np.nan, np.float32)), host(np.zeros(arrivals, np.int32)))


class Case:
    """A product and what it should be, in float64; x has a mean, which makes large sums cancel."""

    def __init__(self, bf16: bool, m: int, n: int, k: int, group: int) -> None:
        rng = np.random.default_rng(m * n + k)
        self.bf16, self.m, self.n = bf16, m, n
        self.w, self.weight = make(n, k, group)
        self.x = host(bits((rng.standard_normal((m, k)) + 1).astype(np.float32), bf16))
        self.bias = host(rng.standard_normal(n).astype(np.float32))
        self.product = values_of(self.x, bf16) @ self.w.dequantise().T.astype(np.float64)

    def wanted(self, epilogue: Epilogue) -> NDArray[np.float64]:
        y = self.product + self.bias
        if epilogue != "silu":
            return y
        pairs = y.reshape(self.m, -1, 2, 8)
        gate, up = pairs[:, :, 0].reshape(self.m, -1), pairs[:, :, 1].reshape(self.m, -1)
        wanted: NDArray[np.float64] = gate / (1 + np.exp(-gate)) * up * headroom(self.bf16)
        return wanted

    def check(self, epilogue: Epilogue, found: NDArray[Any]) -> None:
        wide = found.dtype == np.float32
        values = found if wide else values_of(found, self.bf16)
        assert error(values, self.wanted(epilogue)) < (EXACT if wide else rounding(self.bf16))


def streamed(device: EmulatedDevice, case: Case, plan: StreamPlan, epilogue: Epilogue, **source: Any) -> Any:
    wide = epilogue in ("add", "logits")
    out = poisoned(case.m, case.n // 2 if epilogue == "silu" else case.n, wide=wide)
    if epilogue == "add":
        out[...] = 0
    scratch = room(*scratch_sizes(plan, case.weight.layout))
    packed_small(device, case.bf16, plan, epilogue, case.weight, out, scratch, bias=case.bias, **source)
    assert not scratch.arrivals.any()
    return out


STREAMS = StreamPlan(3, warps=2, stages=2)
HALVES = StreamPlan(2, warps=4, tiles=2)


@pytest.mark.parametrize("epilogue", ["store", "add", "silu", "logits"])
def test_few_tokens_are_multiplied(device: EmulatedDevice, epilogue: Epilogue) -> None:
    case = Case(False, 3, 208, 456, 128)
    case.check(epilogue, streamed(device, case, STREAMS, epilogue, x=case.x))


@pytest.mark.parametrize(
    ("m", "n", "k", "group"),
    [(1, 8, 8, 128), (8, 65, 136, 128), (5, 40, 576, 128), (2, 1000, 128, 128), (7, 64, 1160, 1160)],
    ids=str,
)
def test_few_tokens_of_any_shape(device: EmulatedDevice, m: int, n: int, k: int, group: int) -> None:
    """Fewer units than warps, runs of whole columns and parts of one, rows and columns that fill no unit."""
    case = Case(False, m, n, k, group)
    case.check("logits", streamed(device, case, STREAMS, "logits", x=case.x))


@pytest.mark.parametrize("plan", [HALVES], ids=["halves"])
def test_small_groups_and_bfloat16(device: EmulatedDevice, plan: StreamPlan) -> None:
    case = Case(True, 4, 104, 200, 32)
    case.check("logits", streamed(device, case, plan, "logits", x=case.x))


@pytest.mark.parametrize(("m", "k"), [(1, 456), (8, 136)])
def test_the_norm_comes_first(device: EmulatedDevice, m: int, k: int) -> None:
    case = Case(False, m, 208, k, 128)
    rng = np.random.default_rng(m)
    residual, gamma = rng.standard_normal((m + 3, k)).astype(np.float32) * 3, rng.standard_normal(k)
    rows = rng.permutation(m + 3)[:m].astype(np.int32)
    picked = residual[rows].astype(np.float64)
    normed = picked / np.sqrt((picked**2).mean(axis=1, keepdims=True) + 1e-6) * gamma
    out = streamed(
        device, case, STREAMS, "logits", residual=host(residual), norm=host(gamma.astype(np.float32)),
        eps=1e-6, rows=host(rows),
    )  # fmt: skip
    wanted = normed @ case.w.dequantise().T.astype(np.float64) + case.bias
    assert error(out, wanted) < 2 * rounding(False)


def test_tokens_do_not_depend_on_their_neighbours(device: EmulatedDevice) -> None:
    case = Case(False, 4, 208, 456, 128)
    together = streamed(device, case, STREAMS, "logits", x=case.x)
    case.m, case.x = 1, host(case.x[2:3])
    assert np.array_equal(streamed(device, case, STREAMS, "logits", x=case.x)[0], together[2])


def test_a_kernel_without_room_for_its_parts_is_refused(device: EmulatedDevice) -> None:
    case = Case(False, 1, 64, 128, 128)
    with pytest.raises(EngineFault, match="needs room for"):
        packed_small(
            device, False, STREAMS, "logits", case.weight, poisoned(1, 64, wide=True), room(1, 1), x=case.x
        )


@pytest.fixture(scope="session")
def hopper(tmp_path_factory: pytest.TempPathFactory) -> EmulatedDevice:
    return EmulatedDevice(tmp_path_factory.mktemp("emulated-hopper"), hopper=True)


def tiled(device: EmulatedDevice, case: Case, plan: TilePlan, epilogue: Epilogue, alpha: float = 1.0) -> Any:
    wide = epilogue in ("add", "logits")
    out = poisoned(case.m, case.n // 2 if epilogue == "silu" else case.n, wide=wide)
    if epilogue == "add":
        out[...] = 0
    scratch = room(*tile_scratch(plan, case.weight.layout, case.m))
    packed_large(
        device, case.bf16, plan, epilogue, case.weight, out, scratch, x=case.x, bias=case.bias, alpha=alpha
    )
    assert not scratch.arrivals.any()
    return out


TILED = {
    "hopper": (False, 64, TilePlan(3, 32, warps=8, stages=3, resident=1)),
    "device": (True, 32, TilePlan(3, 16, warps=4, stages=2, resident=1)),
}
"""wgmma and mma.sync: type, group and plan."""


@pytest.mark.parametrize("instructions", TILED)
def test_many_tokens_are_multiplied(instructions: str, request: pytest.FixtureRequest) -> None:
    where = request.getfixturevalue(instructions)
    bf16, group, plan = TILED[instructions]
    for epilogue in ("store", "add", "silu", "logits"):
        case = Case(bf16, 35, 144, 264, group)
        case.check(epilogue, tiled(where, case, plan, epilogue))


@pytest.mark.parametrize("instructions", TILED)
@pytest.mark.parametrize(("m", "n", "k"), [(9, 8, 640), (65, 1000, 128), (32, 65, 64)], ids=str)
def test_many_tokens_of_any_shape(
    instructions: str, m: int, n: int, k: int, request: pytest.FixtureRequest
) -> None:
    """Cut tiles and whole ones, tokens, rows and columns that fill no tile."""
    where = request.getfixturevalue(instructions)
    bf16, group, plan = TILED[instructions]
    case = Case(bf16, m, n, k, group)
    case.check("logits", tiled(where, case, plan, "logits", alpha=1.0))


def test_tiles_are_cut_only_where_that_keeps_blocks_busy() -> None:
    layout = Layout(37888, 3584, 128)
    assert not TilePlan(132, 64).whole(layout, 64)  # 296 tiles in 3 turns
    assert TilePlan(132, 128).whole(layout, 1024)  # 2,368 in 18
    assert TilePlan(132, 64).workers(Layout(128, 3584, 128), 1) == 28
