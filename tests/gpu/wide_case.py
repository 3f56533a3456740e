"""Random products for linear_wide, how it may spread them, and what is right in float64."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.launch import ceil_div
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.linear_wide import linear_wide, unit
from llmrs_cli.kernels.silu_mul import headroom
from llmrs_cli.kernels.wide_plans import GROUP_TOKENS, MOST_TOKENS, Room, WidePlan, cost, plans
from tests.gpu.halves import cp, error, halves, rounding, widened

Wide = NDArray[np.float64]
NAN, LEFT_ALONE = 0x7FFF, 0x4321
"""Bits of a NaN in either type, and of what no kernel may write over."""


def cheapest(device: CudaDevice, m: int, n: int, k: int) -> WidePlan:
    """The plan of so many tokens, where another kernel would be faster too."""
    most, count = ceil_div(m, GROUP_TOKENS) * GROUP_TOKENS, device.multiprocessors
    return min(plans(most, n, k, count), key=lambda plan: cost(plan, most, n, k))


def spread(device: CudaDevice, m: int, n: int, groups: int, rows: int, slices: int, room: Room) -> WidePlan:
    """A plan of our own: a block for each tile and slice, or all blocks in turns."""
    plan = WidePlan(device.multiprocessors, groups, rows, slices, room)
    return plan if slices == 1 else replace(plan, blocks=plan.tiles(m, n) * slices)


def build(device: CudaDevice, bf16: bool, chosen: Iterable[WidePlan], epilogues: Iterable[Epilogue]) -> None:
    """All at once, rather than one by one as they are met."""
    kinds = list(epilogues)
    device.build(tuple(dict.fromkeys(unit(bf16, plan, kind) for plan in chosen for kind in kinds)))


def exact(k: int) -> float:
    """Bound of the error of sums: tensor cores may cut the last bit in each of their steps of 16 columns."""
    return 1e-5 + k / 16 * 2**-24


def followed(epilogue: Epilogue, product: Wide) -> Wide:
    """What an epilogue makes of a product whose columns are 8 gates and 8 ups in turn, if any."""
    if epilogue != "silu":
        return product
    turns = np.moveaxis(product.reshape(len(product), -1, 2, 8), 2, 0)
    gate, up = turns.reshape(2, len(product), -1)
    activated: Wide = gate / (1 + np.exp(-gate)) * up
    return activated


@dataclass
class Case:
    """Random matrices of one shape, for any number of tokens."""

    bf16: bool
    n: int
    k: int
    most: int = MOST_TOKENS
    scale: float = 1.0
    """Of the products"""
    product: Wide = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.n + self.k)
        self.weight, w64 = halves(rng.standard_normal((self.n, self.k)) * self.scale / self.k**0.5, self.bf16)
        self.x, x64 = halves(rng.standard_normal((self.most, self.k)), self.bf16)
        self.bias = rng.standard_normal(self.n).astype(np.float32)
        self.residual = rng.standard_normal((self.most, self.n)).astype(np.float32)
        self.product = x64 @ w64.T

    def tokens(self, m: int) -> Any:
        """The first of them; what lies behind is no number."""
        x = self.x.copy()
        x[m:] = NAN
        return x[:m]

    def run(
        self,
        device: CudaDevice,
        plan: WidePlan,
        epilogue: Epilogue,
        m: int,
        *,
        biased: bool,
        alpha: float = 1.0,
    ) -> Any:
        """What the kernel writes of M tokens, none of it behind them."""
        kind = cp.float32 if epilogue in ("add", "logits") else cp.uint16
        out = cp.full((self.most, self.n // 2 if epilogue == "silu" else self.n), LEFT_ALONE, kind)
        if epilogue == "add":
            out = cp.asarray(self.residual)
        behind = out[m:].copy()
        linear_wide(
            device, self.bf16, plan, epilogue, self.weight, self.tokens(m), out[:m],
            bias=cp.asarray(self.bias) if biased else None, alpha=alpha,
        )  # fmt: skip
        assert (out[m:] == behind).all()
        return out[:m]

    def wrong(
        self,
        device: CudaDevice,
        plan: WidePlan,
        epilogue: Epilogue,
        m: int,
        biased: bool,
        alpha: float = 1.0,
    ) -> float:
        """The error of `run` as a part of what is allowed."""
        wanted = followed(epilogue, alpha * self.product[:m] + (self.bias if biased else 0))
        out = self.run(device, plan, epilogue, m, biased=biased, alpha=alpha)
        if epilogue in ("add", "logits"):
            wanted = wanted + self.residual[:m] if epilogue == "add" else wanted
            return error(cp.asnumpy(out), wanted) / exact(self.k)
        found = widened(out, self.bf16) / (headroom(self.bf16) if epilogue == "silu" else 1)
        return error(found, wanted) / rounding(self.bf16)
