"""The 4-bit kernels on a CPU that plays the GPU: whole launches, against the canonical weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import Packed4, bf16_to_f32, f32_to_bf16
from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.dequantise import dequantise
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.marlin_layout import Layout, pack, tile_group
from llmrs_cli.kernels.packed4 import Packed4Matrix
from llmrs_cli.kernels.packed_large import TilePlan, packed_large
from llmrs_cli.kernels.packed_large import scratch_sizes as tile_scratch
from llmrs_cli.kernels.packed_small import StreamPlan, packed_small
from llmrs_cli.kernels.repack import Kind, Part, compare, repack, stack, widen
from llmrs_cli.kernels.scratch import Scratch
from llmrs_cli.kernels.silu_mul import headroom
from tests.helpers.canonical import packed4, words4
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


FORMS = ("canonical", "awq", "gptq", "tiles")


def part_of(
    form: Kind, rows: int, columns: int, group: int, first: int = 0, turns: int = 1
) -> tuple[Any, Part]:
    """A weight, and as it lies on the device in the order of a file."""
    shape = rows, columns
    if form in ("awq", "gptq"):
        words: Any = words4(np.random.default_rng(rows), form, rows, columns, group)
        arrays = (host(words.codes), host(words.scales.view(np.uint16)), host(words.zeros))
        return words, Part(form, *arrays, shape, group, words.less_one, first, turns)
    w = packed4(np.random.default_rng(rows), rows, columns, group)
    if form == "canonical":
        return w, Part(form, *canonical(w), shape, group, False, first, turns)
    units = pack(w.codes, w.scales.astype(np.float16), w.zeros, group, columns)  # type: ignore[arg-type]
    return w, Part(form, host(units.view(np.uint32)), None, None, shape, group, False, first, turns)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("rows", "columns", "group"), [(104, 200, 64), (24, 264, 264), (72, 512, 256), (40, 96, 32)]
)
def test_parts_of_every_form_are_stacked_in_canonical_order(
    device: EmulatedDevice, form: Kind, rows: int, columns: int, group: int
) -> None:
    """Two parts below a third one's place, which stays untouched."""
    groups, height = -(-columns // group), 8 + 2 * rows
    stacked = (
        host(np.full((height, columns // 8), 0xDEADBEEF, np.uint32)),
        host(np.full((height, groups), 0xBEEF, np.uint16)),
        host(np.full((height, groups), 0xBEEF, np.uint16)),
    )
    w, part = part_of(form, rows, columns, group, first=8 + rows)
    stack(device, False, part, *stacked)
    wanted = canonical(w if isinstance(w, Packed4) else w.canonical())
    for found, right in zip(stacked, wanted, strict=True):
        assert np.array_equal(found[8 + rows :], right)
        assert (found[: 8 + rows] == (0xDEADBEEF if found.dtype == np.uint32 else 0xBEEF)).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("bf16", "group"), [(True, 64), (False, 24)])
def test_parts_of_every_form_are_widened_in_turns_of_eight_rows(
    device: EmulatedDevice, form: Kind, bf16: bool, group: int
) -> None:
    if form == "tiles" and group % 32:
        group = 96
    w, part = part_of(form, 40, 192, group, first=8, turns=2)
    values = host(np.full((80, 192), 0x7FC0, np.uint16))
    widen(device, bf16, part, values)
    turns = values.reshape(5, 2, 8, 192)
    assert np.array_equal(turns[:, 1].reshape(40, 192), bits(w.dequantise(), bf16))
    assert (turns[:, 0] == 0x7FC0).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_wrong_value_is_found_in_any_slab(device: EmulatedDevice, form: Kind) -> None:
    w, part = part_of(form, 152, 200, 64, first=16)
    values, wrong = host(np.zeros((168, 200), np.uint16)), host(np.zeros(1, np.int32))
    widen(device, False, part, values)
    slabs = [(0, values[:64]), (64, values[64:128]), (128, values[128:])]

    def count() -> int:
        wrong[0] = 0
        for top, slab in slabs:
            compare(device, False, part, host(slab), wrong, top)
        return int(wrong[0])

    assert count() == 0
    values[3] ^= 1  # not of this part
    values[167, 199] ^= 1
    values[16 + 7, 8:11] ^= 0x8000
    values[64, 0] ^= 1
    assert count() == 5


@pytest.mark.parametrize(
    ("form", "shape"),
    [("awq", (16, 64)), ("gptq", (16, 72)), ("canonical", (24, 64)), ("tiles", (65, 64))],
)
def test_a_part_that_is_not_what_it_says_is_refused(
    device: EmulatedDevice, form: Kind, shape: tuple[int, int]
) -> None:
    _, part = part_of(form, 32, 64, 32)
    with pytest.raises(EngineFault, match="No kernel reads"):
        widen(device, False, replace(part, shape=shape), host(np.zeros((80, shape[1]), np.uint16)))


def test_parts_that_do_not_fit_the_stack_are_refused(device: EmulatedDevice) -> None:
    _, part = part_of("awq", 32, 64, 12)
    with pytest.raises(EngineFault, match="No room for 64 columns"):
        widen(device, False, part, host(np.zeros((32, 72), np.uint16)))
    with pytest.raises(EngineFault, match="No 64 columns"):
        compare(device, False, part, host(np.zeros((32, 72), np.uint16)), host(np.zeros(1, np.int32)))
    empty = host(np.zeros((32, 6), np.uint16))
    with pytest.raises(EngineFault, match="groups of 12"):
        stack(device, False, part, host(np.zeros((32, 8), np.uint32)), empty, empty)
    _, odd = part_of("canonical", 20, 64, 32, turns=2)
    with pytest.raises(EngineFault, match="No kernel reads"):
        widen(device, False, odd, host(np.zeros((40, 64), np.uint16)))


def test_codes_that_do_not_fit_the_tiles_are_refused(device: EmulatedDevice) -> None:
    w, matrix = make(150, 200, 64)
    with pytest.raises(EngineFault, match="No tiles of"):
        repack(device, False, *canonical(w), 32, matrix)


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
    packed_small(device, case.bf16, plan, epilogue, case.weight, out, bias=case.bias, **source)
    return out


STREAMS = StreamPlan(3, warps=3, stages=2)
PLANS = {
    "tall": StreamPlan(2, warps=2, tiles=4, stages=2),
    "flat": StreamPlan(4, warps=5, tiles=1, stages=3),
    "met after every turn": StreamPlan(2, warps=3, stages=2, room=0),
}


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
    """Fewer columns than warps, tiles for a part of the blocks, rows and columns that fill no tile."""
    case = Case(False, m, n, k, group)
    case.check("logits", streamed(device, case, STREAMS, "logits", x=case.x))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_small_groups_and_bfloat16(device: EmulatedDevice, plan: StreamPlan) -> None:
    case = Case(True, 4, 328, 456, 32)
    for epilogue in ("add", "logits"):
        case.check(epilogue, streamed(device, case, plan, epilogue, x=case.x))


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 170, 904), (8, 48, 3200)], ids=str)
def test_no_bit_depends_on_how_many_steps_are_on_their_way(
    device: EmulatedDevice, m: int, n: int, k: int, group: int
) -> None:
    """Tiles of two units in a step, too: of 11 tiles the second of 3 blocks begins its run with the last of a unit."""
    case = Case(False, m, n, k, group)
    plans = [replace(STREAMS, stages=stages) for stages in (2, 3, 7)]
    first, *others = (streamed(device, case, plan, "logits", x=case.x) for plan in plans)
    case.check("logits", first)
    assert all(np.array_equal(found, first) for found in others)


def test_turns_wait_only_as_long_as_there_is_room(device: EmulatedDevice) -> None:
    case = Case(False, 3, 600, 200, 128)
    results = []
    for room in (0, 22_000, 1 << 20):
        plan = replace(STREAMS, room=room)
        assert plan.held(case.weight.layout, 3, False) == {0: 1, 22_000: 3}.get(room, 7)
        results.append(streamed(device, case, plan, "logits", x=case.x))
    case.check("logits", results[0])
    assert all(np.array_equal(found, results[0]) for found in results)


@pytest.mark.parametrize(("m", "k"), [(1, 456), (1, 1416), (8, 136)])
def test_the_norm_comes_first(device: EmulatedDevice, m: int, k: int) -> None:
    case = Case(False, m, 208, k, 128)
    rng = np.random.default_rng(m)
    residual, gamma = rng.standard_normal((m, k)).astype(np.float32) * 3, rng.standard_normal(k)
    picked = residual.astype(np.float64)
    normed = picked / np.sqrt((picked**2).mean(axis=1, keepdims=True) + 1e-6) * gamma
    out = streamed(
        device, case, STREAMS, "logits", residual=host(residual), norm=host(gamma.astype(np.float32)),
        eps=1e-6,
    )  # fmt: skip
    wanted = normed @ case.w.dequantise().T.astype(np.float64) + case.bias
    assert error(out, wanted) < 2 * rounding(False)


def test_tokens_do_not_depend_on_their_neighbours(device: EmulatedDevice) -> None:
    case = Case(False, 4, 208, 456, 128)
    together = streamed(device, case, STREAMS, "logits", x=case.x)
    case.m, case.x = 1, host(case.x[2:3])
    assert np.array_equal(streamed(device, case, STREAMS, "logits", x=case.x)[0], together[2])


def test_more_tokens_than_a_fragment_holds_are_refused(device: EmulatedDevice) -> None:
    case = Case(False, 9, 64, 128, 128)
    with pytest.raises(EngineFault, match="cannot serve 9 tokens"):
        streamed(device, case, STREAMS, "logits", x=case.x)


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
