"""A norm between two products of linear_wide, which needs no kernel: against float64, and against the kernel. Hopper only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.launch import ceil_div
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.linear_wide import linear_wide
from llmrs_cli.kernels.norm_ahead import Ahead
from llmrs_cli.kernels.rms_norm import rms_norm
from llmrs_cli.kernels.silu_mul import headroom
from llmrs_cli.kernels.wide_plans import Room, WidePlan
from tests.gpu.halves import TYPES, cp, error, halves, rounding, widened
from tests.gpu.wide_case import LEFT_ALONE, NAN, Case, Wide, build, cheapest, exact, followed, spread

EPS = 1e-6


@dataclass
class Chain:
    """A sum into C values, their norm, and the product that follows."""

    bf16: bool
    m: int
    plan: WidePlan
    c: int = 1008
    k: int = 520
    massive: float = 0.0
    """A few values of the residual are so large"""

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.m)
        self.case = Case(self.bf16, self.c, self.k)
        self.case.residual[::3, 5::400] += self.massive
        self.norm = rng.standard_normal(self.c).astype(np.float32)
        self.norm[5::400] = 1
        self.last, self.last64 = halves(rng.standard_normal((192, self.c)) / self.c**0.5, self.bf16)
        self.sum = self.case.product[: self.m] + self.case.residual[: self.m]
        parts = self.plan.parts(self.c)
        squares = cp.full((self.m, ceil_div(parts, 4) * 4 + 4), np.nan, cp.float32)
        values = cp.full((self.m, self.c), NAN, cp.uint16)
        self.left = Ahead(cp.asarray(self.norm), values, squares, parts)
        self.added = cp.asarray(self.case.residual[: self.m])

    def add(self, device: CudaDevice) -> None:
        case = self.case
        linear_wide(
            device,
            self.bf16,
            self.plan,
            "add",
            case.weight,
            case.tokens(self.m),
            self.added,
            leaves=self.left,
        )

    def follow(self, device: CudaDevice, epilogue: Epilogue, eps: float, alpha: float = 1.0) -> Any:
        """What the next product makes of what was left."""
        wide = epilogue == "logits"
        out = cp.full(
            (self.m, 96 if epilogue == "silu" else 192), LEFT_ALONE, cp.float32 if wide else cp.uint16
        )
        linear_wide(
            device, self.bf16, cheapest(device, self.m, 192, self.c), epilogue, self.last, self.left.values,
            out, ahead=self.left, eps=eps, alpha=alpha,
        )  # fmt: skip
        if wide:
            return cp.asnumpy(out)
        return widened(out, self.bf16) / (headroom(self.bf16) if epilogue == "silu" else 1)

    def wanted(self, epilogue: Epilogue, eps: float) -> Wide:
        rms = np.sqrt((self.sum**2).mean(axis=1, keepdims=True) + eps)
        return followed(epilogue, self.sum / rms * self.norm @ self.last64.T)


def chains(device: CudaDevice, bf16: bool, massive: float = 0.0) -> list[Chain]:
    """Blocks in turns, slices, and more sums of squares than a thread reads at once."""
    kinds: list[tuple[int, int, int, int, Room]] = [
        (33, 1, 80, 1, "all"),
        (200, 2, 80, 1, "most"),
        (192, 3, 176, 4, "all"),
        (100, 2, 80, 3, "more"),
        (256, 1, 64, 8, "all"),
    ]
    found = [
        Chain(bf16, m, spread(device, m, Chain.c, groups, rows, slices, room), massive=massive)
        for m, groups, rows, slices, room in kinds
    ]
    build(device, bf16, [chain.plan for chain in found], ["add"])
    assert found[-1].left.parts > 112
    return found


@pytest.mark.parametrize("bf16", TYPES)
def test_a_sum_leaves_its_values_by_the_norm_and_their_squares(hopper: CudaDevice, bf16: bool) -> None:
    for chain in chains(hopper, bf16):
        chain.add(hopper)
        parts, squares = chain.left.parts, cp.asnumpy(chain.left.squares)
        assert error(cp.asnumpy(chain.added), chain.sum) < exact(chain.k), chain.plan
        assert error(squares[:, :parts].sum(axis=1), (chain.sum**2).sum(axis=1)) < 1e-5, chain.plan
        assert np.isnan(squares[:, parts:]).all()
        values = widened(chain.left.values, bf16) / headroom(bf16)
        assert error(values, chain.sum * chain.norm) < rounding(bf16), chain.plan


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize("epilogue", ["store", "silu", "logits"])
@pytest.mark.parametrize("eps", [EPS, 0.25])
def test_a_product_takes_what_a_sum_has_left(
    hopper: CudaDevice, bf16: bool, epilogue: Epilogue, eps: float
) -> None:
    for chain in chains(hopper, bf16):
        chain.add(hopper)
        found = chain.follow(hopper, epilogue, eps)
        assert error(found, chain.wanted(epilogue, eps)) < 2 * rounding(bf16), chain.plan
        if epilogue == "logits":
            assert error(chain.follow(hopper, epilogue, eps, alpha=0.5), found / 2) < 1e-6


@pytest.mark.parametrize("bf16", TYPES)
def test_it_is_what_a_norm_in_between_gives(hopper: CudaDevice, bf16: bool) -> None:
    for chain in chains(hopper, bf16):
        chain.add(hopper)
        normed, out = cp.zeros((chain.m, chain.c), cp.uint16), cp.zeros((chain.m, 192), cp.float32)
        rms_norm(hopper, bf16, chain.added, chain.left.norm, EPS, normed)
        plan = cheapest(hopper, chain.m, 192, chain.c)
        linear_wide(hopper, bf16, plan, "logits", chain.last, normed, out)
        assert error(chain.follow(hopper, "logits", EPS), cp.asnumpy(out)) < 2 * rounding(bf16), chain.plan


@pytest.mark.parametrize("bf16", TYPES)
def test_massive_values_have_room(hopper: CudaDevice, bf16: bool) -> None:
    """Beyond float16 itself, and within it once HEADROOM has made them less."""
    for chain in chains(hopper, bf16, massive=2e5):
        assert 65504 < np.abs(chain.sum * chain.norm).max() < 65504 * 16
        chain.add(hopper)
        assert np.isfinite(widened(chain.left.values, bf16)).all()
        assert error(chain.follow(hopper, "logits", EPS), chain.wanted("logits", EPS)) < 2 * rounding(bf16)


def test_what_is_left_has_the_same_bits_each_time(hopper: CudaDevice) -> None:
    for one, other in zip(chains(hopper, True), chains(hopper, True), strict=True):
        one.add(hopper)
        other.add(hopper)
        assert (one.left.values == other.left.values).all() and (one.added == other.added).all()
        counted = slice(0, one.left.parts)
        assert (one.left.squares[:, counted] == other.left.squares[:, counted]).all()
