"""Random tokens of a product of many, what a kernel writes of them, and how far that is from float64. Only Hopper runs such."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llmrs_cli.kernels.many_plans import ManyEpilogue
from llmrs_cli.kernels.silu_mul import headroom
from tests.gpu.halves import cp, error, halves, rounding, widened
from tests.gpu.wide_case import LEFT_ALONE, NAN, Wide, exact, followed

TOKENS = (257, 300, 511, 512, 1000, 1200, 2100)
BEHIND = 300
"""Tokens that are watched behind those of a product: more than a tile has."""
Launch = Callable[..., None]
"""(epilogue, x, out, bias=, alpha=): a product with the matrix of a case."""


@dataclass
class Tokens:
    """Of N results and K values each, for any number of them."""

    bf16: bool
    n: int
    k: int
    most: int = max(TOKENS)
    x: Any = field(init=False)
    x64: Wide = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.n + self.k)
        self.x, self.x64 = halves(rng.standard_normal((self.most + BEHIND, self.k)), self.bf16)
        self.bias = cp.asarray(rng.standard_normal(self.n).astype(np.float32))
        self.residual = cp.asarray(rng.standard_normal((self.most + BEHIND, self.n), dtype=np.float32))

    def multiplied(self, w64: Wide) -> Wide:
        """The product of all tokens, made on the GPU."""
        product: Wide = cp.asnumpy(cp.asarray(self.x64) @ cp.asarray(w64).T)
        return product

    def written(self, launch: Launch, epilogue: ManyEpilogue, m: int, alpha: float, biased: bool) -> Any:
        """What `launch` writes of M tokens, none of it behind them, where tokens are NaN."""
        x = self.x.copy()
        x[m:] = NAN
        out = cp.full((m + BEHIND, self.n // 2 if epilogue == "silu" else self.n), LEFT_ALONE, cp.uint16)
        if epilogue == "add":
            out = self.residual[: m + BEHIND].copy()
        behind = out[m:].copy()
        launch(epilogue, x[:m], out[:m], bias=self.bias if biased else None, alpha=alpha)
        assert (out[m:] == behind).all()
        return out[:m]

    def off(self, out: Any, product: Wide, epilogue: ManyEpilogue, alpha: float, biased: bool) -> float:
        """The error of what was written, as a part of what is allowed."""
        m, added = len(out), cp.asnumpy(self.bias).astype(np.float64) if biased else 0
        wanted = followed(epilogue, alpha * product[:m] + added)
        if epilogue == "add":
            return error(cp.asnumpy(out), wanted + cp.asnumpy(self.residual[:m])) / exact(self.k)
        found = widened(out, self.bf16) / (headroom(self.bf16) if epilogue == "silu" else 1)
        return error(found, wanted) / rounding(self.bf16)
