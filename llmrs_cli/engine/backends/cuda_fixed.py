"""Products whose bits do not depend on company: every token's sums run in one order, however many run beside it.

One family of kernels serves all sizes: cuBLASLt over exactly FIXED_TOKENS tokens with the algorithm that it
proposes first, and the norm in a kernel of its own. A row of a product does not feel its neighbours, so what
lies in the rest of the last tile is of no account.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cupy as cp

from llmrs_cli.engine.arrays import Array
from llmrs_cli.engine.backends.cuda_linear import CudaLinear
from llmrs_cli.engine.backends.cuda_memory import Arena
from llmrs_cli.engine.backends.cuda_staging import FIXED_TOKENS
from llmrs_cli.kernels.gemm import Gemm
from llmrs_cli.kernels.launch import Device
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.rms_norm import rms_norm
from llmrs_cli.kernels.silu_mul import silu_mul


@dataclass(frozen=True, slots=True)
class FixedProducts:
    """The linears of one GPU, in tiles."""

    device: Device
    gemm: Gemm
    """One that does not measure."""
    arena: Arena

    def norm_linear(
        self, epilogue: Epilogue, x: Array, norm: Any, eps: float, weight: CudaLinear, out: Array
    ) -> None:
        """out = epilogue(linear(rms_norm(x))); `x` and `out` have whole tiles of tokens."""
        normed = self.arena.take("normed", x.shape, cp.uint16)
        rms_norm(self.device, weight.bf16, x, norm, eps, normed)
        if epilogue == "silu":
            gate_up = self.arena.take("gate_up", (len(normed), weight.shape[0]), cp.uint16)
            self.linear(normed, weight, gate_up, weight.narrow_bias)
            silu_mul(self.device, weight.bf16, gate_up, out)
        else:
            self.linear(normed, weight, out, weight.bias if epilogue == "logits" else weight.narrow_bias)

    def linear(self, x: Array, weight: CudaLinear, out: Array, bias: Any, **how: Any) -> None:
        """out = x · Wᵀ (+ bias), `how` as `Gemm` takes it; a product for each tile."""
        for first in range(0, len(x), FIXED_TOKENS):
            part = slice(first, first + FIXED_TOKENS)
            self.gemm(weight.bf16, x[part], weight.weight, out[part], bias, **how)
