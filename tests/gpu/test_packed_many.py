"""packed_many.cu: exact for the values that dequantise.cu gives, every tile, cluster and epilogue. Only Hopper runs it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.qwen_shapes import linears
from llmrs_cli.kernels.dequantise import dequantise
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.linear_many import EPILOGUES, linear_many
from llmrs_cli.kernels.many_plans import LAGS, TILES, ManyEpilogue, ManyPlan, Shared, spread
from llmrs_cli.kernels.marlin_layout import CODE_BYTES, Layout
from llmrs_cli.kernels.packed4 import Packed4Matrix
from llmrs_cli.kernels.packed_many import packed_many, unit
from llmrs_cli.kernels.packed_many_plans import KINDS, PackedManyPlan, helpers_of, plan_for
from tests.gpu import test_packed
from tests.gpu.halves import TYPES, cp, error, halves, widened
from tests.gpu.many_case import TOKENS, Tokens

ODD = [
    (16, 8, 128), (48, 24, 32), (80, 120, 64), (336, 136, 128), (1008, 904, 32), (176, 1032, 64),
    (208, 200, 200), (64, 1160, 384),
]  # fmt: skip
"""(N, K, G): no multiples of what a step, a tile or a unit has, less than one of either; groups of several tiles and of all."""
REAL = [(bf16, *linear) for bf16 in TYPES for linear in linears("0.5b") if linear[2] != "logits"]
REAL += [(False, *linear) for linear in linears("7b") if linear[2] != "logits"]
CLOSE = {True: 2.5e-3, False: 3.5e-4}
"""Error that weights and results which are each rounded once may have, by whether to bf16."""


class Case:
    """A 4-bit matrix and tokens, which the GPU multiplies in float64 too, with the values that it widens codes to."""

    def __init__(self, bf16: bool, matrix: Packed4Matrix) -> None:
        self.bf16, self.matrix = bf16, matrix
        self.n, self.k = matrix.shape
        self.tokens = Tokens(bf16, self.n, self.k)
        self.dense = cp.zeros(matrix.shape, cp.uint16)
        self.product: Any = None

    def widen(self, device: CudaDevice) -> Any:
        """The matrix (N, K) as dequantise.cu gives it."""
        dequantise(device, self.bf16, self.matrix, self.dense)
        device.synchronise()  # linear_many reads weights before kernels ahead have ended
        return self.dense

    def run(
        self,
        device: CudaDevice,
        plan: ManyPlan,
        epilogue: ManyEpilogue,
        m: int,
        *,
        alpha: float = 1.0,
        biased: bool = True,
    ) -> Any:
        """What is written of M tokens; by linear_many, if the plan is its."""

        def launch(epilogue: ManyEpilogue, x: Any, out: Any, **more: Any) -> None:
            if isinstance(plan, PackedManyPlan):
                packed_many(device, self.bf16, plan, epilogue, self.matrix, x, out, **more)
            else:
                linear_many(device, self.bf16, plan, epilogue, self.widen(device), x, out, **more)

        return self.tokens.written(launch, epilogue, m, alpha, biased)

    def wrong(
        self, device: CudaDevice, plan: PackedManyPlan, epilogue: ManyEpilogue, m: int, alpha: float = 1.0,
        biased: bool = True,
    ) -> float:  # fmt: skip
        """The error of `run` as a part of what is allowed."""
        out = self.run(device, plan, epilogue, m, alpha=alpha, biased=biased)
        if self.product is None:
            self.product = self.tokens.multiplied(widened(self.widen(device), self.bf16))
        return self.tokens.off(out, self.product, epilogue, alpha, biased)


def random_case(bf16: bool, n: int, k: int, group: int = 128) -> Case:
    """Tiles of random codes, zeros of 0 to 15, scales of 2^-7 to 2^-6."""
    layout = Layout(n, k, group)
    shape = layout.unit_rows, layout.unit_columns, layout.unit_bytes // 4
    low, high = (cp.random.randint(0, 1 << 16, shape).astype(cp.uint32) for _ in range(2))
    units = low | high << 16
    heads = units.reshape(-1, layout.tile_bytes // 4)[:, CODE_BYTES // 4 :]
    heads[...] = heads >> 28 << 16 | 0x2000 + (heads & 0x3FF)
    cp.cuda.Device().synchronize()  # kernels read weights without waiting for the kernel before
    return Case(bf16, Packed4Matrix(units, layout))


def chosen(device: CudaDevice, case: Case, m: int) -> PackedManyPlan:
    plan = plan_for(m, case.matrix.layout, device.multiprocessors)
    assert plan is not None
    return plan


def planned(
    device: CudaDevice,
    case: Case,
    m: int,
    tile: tuple[int, int, int],
    shared: Shared = "tokens",
    lag: int = 1,
    helpers: int = 1,
) -> PackedManyPlan:
    own = spread(m, case.n, tile, shared, lag, device.multiprocessors)
    return PackedManyPlan(own.blocks, *tile, shared, lag, own.band, case.matrix.layout.group, helpers)


def build(device: CudaDevice, bf16: bool, wanted: Iterable[tuple[PackedManyPlan, ManyEpilogue]]) -> None:
    """All at once, rather than one by one as they are met."""
    device.build(tuple(dict.fromkeys(unit(bf16, plan, epilogue) for plan, epilogue in wanted)))


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize(("n", "k", "group"), ODD)
def test_odd_shapes_of_many_tokens(hopper: CudaDevice, bf16: bool, n: int, k: int, group: int) -> None:
    canonical = test_packed.Case(n, k, group)
    case = Case(bf16, canonical.matrix)
    tried = [(m, chosen(hopper, case, m), epilogue) for m in TOKENS for epilogue in EPILOGUES]
    build(hopper, bf16, ((plan, epilogue) for _, plan, epilogue in tried))
    for m, plan, epilogue in tried:
        assert case.wrong(hopper, plan, epilogue, m) < 1, (m, plan, epilogue)
        assert case.wrong(hopper, plan, epilogue, m, alpha=3.0, biased=False) < 1, (m, plan, epilogue)
    found = widened(case.run(hopper, tried[0][1], "store", 257, biased=False), bf16)
    assert error(found, case.tokens.x64[:257] @ canonical.values.T) < CLOSE[bf16]


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize("group", [32, 64, 128])
def test_codes_are_widened_to_the_bits_of_a_dequantised_matrix(
    hopper: CudaDevice, bf16: bool, group: int
) -> None:
    """What tokens that are ones of one column each give is the matrix."""
    k = 1032
    case = random_case(bf16, 528, k, group)
    case.tokens.x[:k], _ = halves(np.eye(k), bf16)
    case.tokens.residual[:] = 0
    found = case.run(hopper, chosen(hopper, case, k), "add", k, biased=False)
    assert (widened(case.widen(hopper), bf16) == cp.asnumpy(found).T).all()


@pytest.mark.parametrize("m", [1, 15, 64, 65, 129, 256])
@pytest.mark.parametrize("shared", KINDS)
def test_fewer_tokens_than_a_tile_has(hopper: CudaDevice, shared: Shared, m: int) -> None:
    case = random_case(True, 336, 136)
    for epilogue in EPILOGUES:
        assert case.wrong(hopper, planned(hopper, case, m, (2, 1, 128), shared), epilogue, m) < 1, epilogue


@pytest.mark.parametrize(("bf16", "n", "k", "epilogue"), REAL)
def test_products_of_models(hopper: CudaDevice, bf16: bool, n: int, k: int, epilogue: ManyEpilogue) -> None:
    case = random_case(bf16, n, k)
    plans_of = {m: chosen(hopper, case, m) for m in TOKENS}
    build(hopper, bf16, ((plan, epilogue) for plan in plans_of.values()))
    for m, plan in plans_of.items():
        assert case.wrong(hopper, plan, epilogue, m, biased=epilogue == "store") < 1, (m, plan)


@pytest.mark.parametrize(
    ("bf16", "group", "epilogue"), [(True, 64, "store"), (False, 128, "silu"), (False, 32, "add")]
)
def test_every_tile_writes_the_bits_of_linear_many_with_dequantised_weights(
    hopper: CudaDevice, bf16: bool, group: int, epilogue: ManyEpilogue
) -> None:
    m, n, k = 1000, 1008, 1032
    case = random_case(bf16, n, k, group)
    tried = [
        planned(hopper, case, m, tile, shared, LAGS[at % len(LAGS)], helpers)
        for at, tile in enumerate(TILES)
        for helpers in helpers_of(tile)
        for shared in KINDS
    ]
    build(hopper, bf16, ((plan, epilogue) for plan in tried))
    wanted = case.run(hopper, spread(m, n, (2, 1, 128), "rows", 1, hopper.multiprocessors), epilogue, m)
    assert case.wrong(hopper, tried[0], epilogue, m) < 1
    assert [plan for plan in tried if not (case.run(hopper, plan, epilogue, m) == wanted).all()] == []


@pytest.mark.parametrize("shared", KINDS)
@pytest.mark.parametrize("lag", LAGS)
def test_blocks_that_take_turns_and_bands_of_any_size_write_the_same_bits(
    hopper: CudaDevice, shared: Shared, lag: int
) -> None:
    """One cluster that has all tiles to itself, some of several turns each, and one for each tile."""
    case = random_case(True, 1008, 520)
    own = planned(hopper, case, 1000, (2, 1, 128), shared, lag, 2)
    cluster = own.cluster
    tried = [own, replace(own, blocks=cluster, band=3), replace(own, blocks=7 * cluster, band=1)]
    for epilogue in EPILOGUES:
        assert case.wrong(hopper, own, epilogue, 1000) < 1
        first, *others = (case.run(hopper, plan, epilogue, 1000) for plan in tried)
        assert all((first == other).all() for other in others), epilogue


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_the_same_bits_each_time_and_whatever_the_neighbours(
    hopper: CudaDevice, epilogue: ManyEpilogue
) -> None:
    case = random_case(False, 1008, 1032)
    together = case.run(hopper, planned(hopper, case, 2100, (2, 2, 192)), epilogue, 2100)
    for _ in range(5):
        again = case.run(hopper, planned(hopper, case, 2100, (2, 2, 192)), epilogue, 2100)
        assert (again == together).all()
    alone = case.run(hopper, planned(hopper, case, 333, (2, 2, 192)), epilogue, 333)
    assert (together[:333] == alone).all()


@pytest.mark.parametrize(("n", "k"), [(3584, 18944), (37888, 3584)])
@pytest.mark.parametrize("tile", [(2, 2, 192), (2, 1, 192)], ids=str)
def test_a_result_does_not_depend_on_time(
    hopper: CudaDevice, n: int, k: int, tile: tuple[int, int, int]
) -> None:
    """Stages go around thousands of times; a stage that is read too soon or left too late would show."""
    case = random_case(False, n, k)
    plan = planned(hopper, case, 2048, tile)
    wide = spread(2048, n, tile, "tokens", 1, hopper.multiprocessors)
    first = case.run(hopper, plan, "store", 2048)
    assert (first == case.run(hopper, wide, "store", 2048)).all()
    for _ in range(20):
        assert (case.run(hopper, plan, "store", 2048) == first).all()


@pytest.mark.parametrize("shared", KINDS)
def test_kernels_in_a_row_wait_for_what_they_read(hopper: CudaDevice, shared: Shared) -> None:
    """Each reads what the one before writes, and writes what that reads; the host waits between, or not."""
    m, c = 1200, 896
    gate_up, square = random_case(False, 2 * c, c), random_case(False, c, c)
    start, _ = halves(np.random.default_rng(0).standard_normal((m, c)), False)

    def run(waits: bool) -> Any:
        x, y = cp.zeros((2, m, c), cp.uint16)
        sums = cp.zeros((m, c), cp.float32)
        there: list[tuple[ManyEpilogue, Case, Any, Any]] = [("store", square, y, x), ("store", square, x, y)]
        row = [("silu", gate_up, start, y), *there * 4, ("add", square, y, sums)]
        for epilogue, case, source, out in row * 10:
            tile = (2, 1, 192) if epilogue == "silu" else (2, 2, 160)
            plan = planned(hopper, case, m, tile, shared)
            packed_many(hopper, False, plan, epilogue, case.matrix, source, out)
            if waits:
                hopper.synchronise()
        return sums

    found, wanted = run(waits=False), run(waits=True)
    assert (found == wanted).all() and float(cp.abs(found).mean()) > 0


def test_float16_saturates(hopper: CudaDevice) -> None:
    """Weights (15 codes of the largest scale) and results."""
    case = random_case(False, 16, 64)
    tiles = case.matrix.units.reshape(4, -1)
    tiles[:, :256], tiles[:, 256:] = 0xFFFFFFFF, 0x7BFF
    plan = chosen(hopper, case, 300)
    case.tokens.x[:] = 0
    case.tokens.x[:, 0] = 0x3C00
    assert (case.run(hopper, plan, "add", 300, biased=False) - case.tokens.residual[:300] >= 65503).all()
    case.tokens.x[:, 1] = 0x3C00
    assert (widened(case.run(hopper, plan, "store", 300, biased=False), False) == 65504).all()
