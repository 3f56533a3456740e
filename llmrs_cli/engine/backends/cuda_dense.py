"""Products with 16-bit matrices on the GPU: which kernel serves how many tokens.

A few tokens read the weights once with norm and epilogue fused (`linear_rows`, `linear_small`); on Hopper up to 256 go
through `linear_wide`, which leaves what the next norm needs; many go through `linear_many` or cuBLASLt. `Paths` is the one
switch: its defaults are what has been measured, and a benchmark tries the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cupy as cp

from llmrs_cli.engine.arrays import Array
from llmrs_cli.engine.backends.cuda_linear import CudaLinear
from llmrs_cli.engine.backends.cuda_memory import Arena
from llmrs_cli.engine.backends.handles import Vector
from llmrs_cli.kernels import linear_rows, linear_small, linear_wide, many_plans
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.gemm import Gemm
from llmrs_cli.kernels.launch import ceil_div
from llmrs_cli.kernels.linear_many import linear_many
from llmrs_cli.kernels.linear_small import MAX_NORM_TOKENS, MAX_TOKENS, Epilogue
from llmrs_cli.kernels.many_plans import ManyPlan
from llmrs_cli.kernels.norm_ahead import Ahead
from llmrs_cli.kernels.rms_norm import rms_norm
from llmrs_cli.kernels.silu_mul import silu_mul
from llmrs_cli.kernels.wide_plans import MOST_TOKENS, WidePlan, plan_for


@dataclass(frozen=True, slots=True)
class Paths:
    """Which kernels run where several could."""

    rows: bool = True
    """Whether `linear_rows` takes what it `suits`"""
    few_attend: bool = True
    """Whether a few sequences have a cluster of blocks for each key head (`attend_few`)"""
    wide: Callable[[int, int, int, int], WidePlan | None] = plan_for
    """How `linear_wide` spreads M tokens of an (N, K) linear over so many multiprocessors; None: another kernel takes it"""
    many: Callable[[int, int, int, Epilogue, int], ManyPlan | None] = many_plans.chosen
    """The same of `linear_many`, for M tokens of an (N, K) linear with what follows it"""
    prompt_tokens: int = 512
    """Of a step at least, whose prompts go through `attend_prompt`; 0: never"""


MEASURED = Paths()


def room_ahead(arena: Arena, norm: Vector, m: int, parts: int) -> Ahead:
    """Where M tokens are left for `norm`, with so many sums of squares."""
    columns, width = len(norm), ceil_div(parts, 4) * 4
    values = arena.take("ahead", (m * columns,), cp.uint16, reserve=MOST_TOKENS * columns)
    squares = arena.take("squares", (m * width,), cp.float32, reserve=MOST_TOKENS * width)
    return Ahead(norm, values.reshape(m, columns), squares.reshape(m, width), parts)


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
        ahead: Ahead | None = None,
    ) -> None:
        """out = epilogue(linear(rms_norm(x))): x (M, K) float32, `ahead` as it was left for this norm."""
        m, k = len(out), x.shape[1]
        plan = self._wide_plan(m, weight)
        if ahead is not None and plan is not None:
            linear_wide.linear_wide(
                self.device, weight.bf16, plan, epilogue, weight.weight, ahead.values, out, bias=weight.bias,
                ahead=ahead, eps=eps,
            )  # fmt: skip
            return
        if plan is None and self._norm_fits(weight, m, k):
            self._few(epilogue, weight, out, residual=x, norm=norm, eps=eps)
            return
        values = self.arena.take("normed", (m, k), cp.uint16)
        rms_norm(self.device, weight.bf16, x, norm, eps, values)
        self.plain(epilogue, values, weight, out)

    def plain(
        self,
        epilogue: Epilogue,
        x: Array,
        weight: CudaLinear,
        out: Array,
        alpha: float = 1.0,
        norm: Vector | None = None,
    ) -> Ahead | None:
        """out = epilogue(alpha · x · Wᵀ + bias): x (M, K) 16-bit; after "add", `out` as it is left for `norm`, if it is."""
        m, plan = len(x), self._wide_plan(len(x), weight)
        if plan is not None:
            leaves = None
            # In float16 what is not yet normed may lose digits that the weights of such a model have.
            if norm is not None and epilogue == "add" and weight.bf16:
                leaves = room_ahead(self.arena, norm, m, plan.parts(len(norm)))
            linear_wide.linear_wide(
                self.device, weight.bf16, plan, epilogue, weight.weight, x, out, bias=weight.bias, alpha=alpha,
                leaves=leaves,
            )  # fmt: skip
            return leaves
        if m <= MAX_TOKENS:
            self._few(epilogue, weight, out, x=x, alpha=alpha)
        else:
            self._many(epilogue, weight, x, out, alpha)
        return None

    @property
    def _hopper(self) -> bool:
        return self.device.loader.arch == "sm_90a"

    def _wide_plan(self, m: int, weight: CudaLinear) -> WidePlan | None:
        if not self._hopper:
            return None
        return self.paths.wide(m, *weight.shape, self.device.multiprocessors)

    def _many_plan(self, epilogue: Epilogue, m: int, weight: CudaLinear) -> ManyPlan | None:
        if not self._hopper:
            return None
        return self.paths.many(m, *weight.shape, epilogue, self.device.multiprocessors)

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

    def _many(self, epilogue: Epilogue, weight: CudaLinear, x: Array, out: Array, alpha: float) -> None:
        plan = self._many_plan(epilogue, len(x), weight)
        if plan is not None and epilogue != "logits":
            linear_many(
                self.device, weight.bf16, plan, epilogue, weight.weight, x, out, bias=weight.bias, alpha=alpha
            )
        elif epilogue == "silu":
            gate_up = self.arena.take("gate_up", (len(x), weight.shape[0]), cp.uint16)
            self.gemm(weight.bf16, x, weight.weight, gate_up, weight.narrow_bias, alpha=alpha)
            silu_mul(self.device, weight.bf16, gate_up, out)
        else:
            bias = weight.narrow_bias if epilogue == "store" else weight.bias
            self.gemm(weight.bf16, x, weight.weight, out, bias, accumulate=epilogue == "add", alpha=alpha)
