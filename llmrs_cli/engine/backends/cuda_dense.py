"""Products with 16-bit matrices on the GPU: which kernel serves how many tokens.

Few tokens read the weights once with norm and epilogue fused (`linear_small`); many go through cuBLASLt. `Paths` is
the one switch: its defaults are what has been measured, and a benchmark tries the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cupy as cp

from llmrs_cli.engine.arrays import Array
from llmrs_cli.engine.backends.cuda_linear import CudaLinear
from llmrs_cli.engine.backends.cuda_memory import Arena
from llmrs_cli.engine.backends.handles import Vector
from llmrs_cli.kernels import linear_rows, linear_small, linear_wide
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.gemm import Gemm
from llmrs_cli.kernels.linear_small import MAX_NORM_TOKENS, MAX_TOKENS, Epilogue
from llmrs_cli.kernels.rms_norm import rms_norm
from llmrs_cli.kernels.scratch import Scratch
from llmrs_cli.kernels.silu_mul import silu_mul


@dataclass(frozen=True, slots=True)
class Paths:
    """Which kernels run where several could."""

    rows: bool = True
    """Whether `linear_rows` takes what it `suits`"""
    few_attend: bool = True
    """Whether a few sequences have a cluster of blocks for each key head (`attend_few`)"""
    wide_silu: range = range(0)
    """Tokens whose gate and up go through `linear_wide`"""
    two_tiles: bool = False
    """Whether prefill attention of many tokens takes two tiles a block, for heads of 64"""


MEASURED = Paths()


@dataclass(frozen=True, slots=True)
class DenseProducts:
    """The products of one backend, with buffers in its arena."""

    device: CudaDevice
    arena: Arena
    gemm: Gemm
    paths: Paths

    def normed(
        self,
        epilogue: Epilogue,
        x: Array,
        norm: Vector,
        eps: float,
        weight: CudaLinear,
        out: Array,
        rows: Array = None,
    ) -> None:
        """out = epilogue(linear(rms_norm(x))): x (T, K) float32, of the tokens `rows` (M,) if given."""
        m, k = len(out), x.shape[1]
        if self._norm_fits(weight, m, k):
            self._few(epilogue, weight, out, residual=x, norm=norm, eps=eps, rows=rows)
            return
        values = self.arena.take("normed", (m, k), cp.uint16)
        rms_norm(self.device, weight.bf16, x, norm, eps, values, rows)
        self.plain(epilogue, values, weight, out)

    def plain(self, epilogue: Epilogue, x: Array, weight: CudaLinear, out: Array, alpha: float = 1.0) -> None:
        """out = epilogue(alpha · x · Wᵀ + bias): x (M, K) 16-bit."""
        if epilogue == "silu" and len(x) in self.paths.wide_silu:
            self._wide(weight, x, out, alpha)
        elif len(x) <= MAX_TOKENS:
            self._few(epilogue, weight, out, x=x, alpha=alpha)
        else:
            self._many(epilogue, weight, x, out, alpha)

    def _norm_fits(self, weight: CudaLinear, m: int, k: int) -> bool:
        limit = self.device.shared_limit
        return m <= MAX_NORM_TOKENS and linear_small.fits(self._small_plan(weight), m, k, limit)

    def _few(self, epilogue: Epilogue, weight: CudaLinear, out: Array, **source: Any) -> None:
        n, k = weight.shape
        if self.paths.rows and linear_rows.suits(len(out), n, k):
            plan = linear_rows.default_plan(n, k, self.device.multiprocessors)
            if linear_rows.shared_bytes(plan, len(out), n, k) <= self.device.shared_limit:
                linear_rows.linear_rows(
                    self.device, weight.bf16, plan, epilogue, weight.weight, out, bias=weight.bias, **source
                )
                return
        linear_small.linear_small(
            self.device, weight.bf16, self._small_plan(weight), epilogue, weight.weight, out, bias=weight.bias,
            **source,
        )  # fmt: skip

    def _small_plan(self, weight: CudaLinear) -> linear_small.SmallPlan:
        return linear_small.default_plan(*weight.shape, self.device.multiprocessors, self.device.shared_limit)

    def _wide(self, weight: CudaLinear, x: Array, out: Array, alpha: float) -> None:
        m, (n, _) = len(x), weight.shape
        plan = linear_wide.default_plan(m, n, self.device.multiprocessors)
        sums, tiles = linear_wide.scratch_sizes(plan, m, n)
        scratch = Scratch(
            self.arena.take("wide partials", (sums,), cp.float32, reserve=0),
            self.arena.take("wide arrivals", (tiles,), cp.int32),
        )
        linear_wide.linear_wide(
            self.device, weight.bf16, plan, "silu", weight.weight, x, out, scratch,
            bias=weight.bias, alpha=alpha,
        )  # fmt: skip

    def _many(self, epilogue: Epilogue, weight: CudaLinear, x: Array, out: Array, alpha: float) -> None:
        if epilogue == "silu":
            gate_up = self.arena.take("gate_up", (len(x), weight.shape[0]), cp.uint16)
            self.gemm(weight.bf16, x, weight.weight, gate_up, weight.narrow_bias, alpha=alpha)
            silu_mul(self.device, weight.bf16, gate_up, out)
            return
        bias = weight.narrow_bias if epilogue == "store" else weight.bias
        self.gemm(weight.bf16, x, weight.weight, out, bias, accumulate=epilogue == "add", alpha=alpha)
