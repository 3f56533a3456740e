"""Products of many tokens, run on the CPU from their CUDA source, against float64: clusters, turns, edges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import bf16_to_f32, f32_to_bf16
from llmrs_cli.kernels.linear_many import linear_many
from llmrs_cli.kernels.many_plans import ManyEpilogue, ManyPlan, Shared
from llmrs_cli.kernels.silu_mul import headroom
from tests.helpers.emulate import EmulatedDevice, host
from tests.helpers.launches import plain_maps

Floats = NDArray[np.float64]
NAN, ALONE = 0x7FFF, 0x4321
"""Bits of a NaN in either type, and of what no kernel may write over."""


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedDevice]:
    with plain_maps():
        yield EmulatedDevice(tmp_path_factory.mktemp("emulated"), hopper=True, together=True)


def bits_of(values: NDArray[Any], bf16: bool) -> NDArray[np.uint16]:
    wide = values.astype(np.float32)
    return f32_to_bf16(wide) if bf16 else wide.astype(np.float16).view(np.uint16)


def floats_of(bits: NDArray[Any], bf16: bool) -> Floats:
    plain = np.asarray(bits)
    return (bf16_to_f32(plain) if bf16 else plain.view(np.float16)).astype(np.float64)


class Case:
    """Random matrices of M tokens; those behind are NaN, and what they would write is watched."""

    def __init__(self, m: int, n: int, k: int, bf16: bool = True) -> None:
        rng = np.random.default_rng(m + n + k)
        self.m, self.n, self.bf16 = m, n, bf16
        self.weight = host(bits_of(rng.standard_normal((n, k)) / k**0.5, bf16))
        self.x = host(np.full((m + 40, k), NAN, np.uint16))
        self.x[:m] = bits_of(rng.standard_normal((m, k)), bf16)
        self.bias = host(rng.standard_normal(n).astype(np.float32))
        self.residual = rng.standard_normal((m + 40, n)).astype(np.float32)

    def run(
        self,
        gpu: EmulatedDevice,
        plan: ManyPlan,
        epilogue: ManyEpilogue,
        *,
        alpha: float = 1.0,
        tokens: int = 0,
    ) -> NDArray[Any]:
        """What is written of all tokens, or of the first ones."""
        m = tokens or self.m
        columns = self.n // 2 if epilogue == "silu" else self.n
        out = host(np.full((m + 40, columns), ALONE, np.uint16))
        if epilogue == "add":
            out = host(self.residual[: m + 40])
        behind = np.array(out[m:])
        linear_many(
            gpu, self.bf16, plan, epilogue, self.weight, self.x[:m], out[:m], bias=self.bias, alpha=alpha
        )
        assert np.array_equal(out[m:], behind)
        return np.array(out[:m])

    def check(self, epilogue: ManyEpilogue, found: NDArray[Any], alpha: float = 1.0) -> None:
        product = floats_of(self.x[: self.m], self.bf16) @ floats_of(self.weight, self.bf16).T
        wanted = product * alpha + self.bias
        if epilogue == "add":
            np.testing.assert_allclose(found, wanted + self.residual[: self.m], rtol=1e-5, atol=1e-5)
            return
        if epilogue == "silu":
            gate, up = np.moveaxis(wanted.reshape(self.m, -1, 2, 8), 2, 0).reshape(2, self.m, -1)
            wanted = gate / (1 + np.exp(-gate)) * up * headroom(self.bf16)
        step = 2.0**-8 if self.bf16 else 2.0**-11
        np.testing.assert_allclose(floats_of(found, self.bf16), wanted, rtol=step, atol=1e-5)


SHARED = ManyPlan(2, 2, 1, 64, "rows", 1, band=2)
"""Two blocks with several turns each."""


@pytest.mark.parametrize(("shared", "epilogue"), [("nothing", "store"), ("rows", "add"), ("tokens", "silu")])
def test_clusters_of_every_kind(gpu: EmulatedDevice, shared: Shared, epilogue: ManyEpilogue) -> None:
    """The last turns are ragged: tokens, rows and columns that fill no tile; none at all for one block."""
    case = Case(300, 208, 136)
    case.check(epilogue, case.run(gpu, replace(SHARED, shared=shared), epilogue, alpha=0.5), alpha=0.5)


@pytest.mark.parametrize(
    ("plan", "m", "n", "k", "bf16", "epilogue"),
    [
        (ManyPlan(4, 2, 1, 240, "rows", 0), 300, 496, 72, False, "silu"),
        (ManyPlan(2, 3, 1, 144, "rows", 2), 200, 160, 200, True, "add"),
        (ManyPlan(2, 2, 2, 144, "tokens", 2), 257, 304, 456, True, "store"),
    ],
    ids=["wide rows", "three warpgroups", "two tiles of tokens each"],
)  # fmt: skip
def test_tiles_of_other_shapes(
    gpu: EmulatedDevice, plan: ManyPlan, m: int, n: int, k: int, bf16: bool, epilogue: ManyEpilogue
) -> None:
    case = Case(m, n, k, bf16)
    case.check(epilogue, case.run(gpu, plan, epilogue))


def test_one_token_and_one_step(gpu: EmulatedDevice) -> None:
    case = Case(1, 16, 8)
    case.check("add", case.run(gpu, SHARED, "add"))


def test_the_order_of_threads_tiles_and_blocks_changes_nothing(gpu: EmulatedDevice) -> None:
    case = Case(300, 208, 136)
    first, again, more, other = (
        case.run(gpu, plan, "add")
        for plan in (SHARED, SHARED, replace(SHARED, blocks=8), replace(SHARED, band=1))
    )
    for found in (again, more, other):
        assert np.array_equal(first, found)


def test_the_bits_of_a_token_do_not_depend_on_its_company(gpu: EmulatedDevice) -> None:
    case = Case(300, 208, 136)
    together, few = case.run(gpu, SHARED, "add"), case.run(gpu, SHARED, "add", tokens=70)
    assert np.array_equal(together[:70], few)
