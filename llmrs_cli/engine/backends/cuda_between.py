"""What stands between two attentions in one launch (`layer_wide`): o, gate and up, down, and the next layer's projection.

For 16-bit weights on Hopper, and tokens for which `Paths.layer` has a plan; elsewhere the decoder's ops run one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import cupy as cp

from llmrs_cli.engine.arrays import Array
from llmrs_cli.engine.backends.cuda_dense import Paths, room_ahead
from llmrs_cli.engine.backends.cuda_linear import CudaLinear
from llmrs_cli.engine.backends.cuda_memory import Arena
from llmrs_cli.engine.backends.cuda_results import CudaHidden
from llmrs_cli.engine.backends.handles import LayerWeights, Vector
from llmrs_cli.kernels.catalog import HOPPER
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.layer_plans import MOST_TOKENS, LayerShape
from llmrs_cli.kernels.layer_wide import LayerMatrices, layer_wide, unit
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.loader import Unit
from llmrs_cli.kernels.wide_plans import GROUP_TOKENS

MOST_COUNTS = 1024
"""Words where blocks meet, so many that the buffer stays where it is."""


@dataclass(frozen=True, slots=True)
class Between:
    """Such launches of one backend, with buffers in its arena."""

    device: CudaDevice
    arena: Arena
    paths: Paths

    def finish(
        self,
        layer: LayerWeights,
        hidden: CudaHidden,
        mixed: Array,
        after: Vector,
        following: LayerWeights | None,
    ) -> bool:
        """A layer from its attention on: `hidden` takes its products, and what the next attention needs; False: nothing
        has been done."""
        matrices = matrices_of(layer, following)
        if matrices is None or self.device.loader.arch != HOPPER:
            return False
        m, shape = len(mixed), matrices.shape
        # Behind the last layer too, the plan of the others: each is compiled.
        usual = replace(shape, qkv=layer.qkv.shape[0])
        plan = self.paths.layer(m, usual, self.device.multiprocessors)
        if plan is None or not plan.serves(m, shape):
            return False
        parts = plan.parts(shape.hidden)
        mlp = room_ahead(self.arena, layer.mlp_norm, m, parts)
        left = room_ahead(self.arena, after, m, parts)
        projected = None
        if matrices.qkv is not None:
            projected = self.arena.take("qkv", (m, matrices.qkv.shape[0]), cp.uint16)
        activated = self.arena.take("activated", (m, shape.ffn), cp.uint16)
        counts = plan.counts(shape.ffn)
        meeting = self.arena.take("grid meeting", (counts,), cp.int32, reserve=MOST_COUNTS)
        layer_wide(
            self.device, True, plan, matrices, mixed, hidden.residual, activated, mlp, left, projected, meeting,
            layer.geometry.eps,
        )  # fmt: skip
        hidden.ahead, hidden.projected = left, projected
        return True


def matrices_of(layer: LayerWeights, following: LayerWeights | None) -> LayerMatrices | None:
    """What is multiplied, if the kernel can serve it: bfloat16, and no bias on what is added."""
    linears = [layer.o, layer.gate_up, layer.down, *([following.qkv] if following else [])]
    if not all(isinstance(linear, CudaLinear) and linear.bf16 for linear in linears):
        return None
    o, gate_up, down, *qkv = (linear for linear in linears if isinstance(linear, CudaLinear))
    if o.bias is not None or down.bias is not None:
        return None
    last = qkv[0] if qkv else None
    return LayerMatrices(
        o.weight, gate_up.weight, down.weight, last and last.weight, gate_up.bias, last and last.bias
    )


def units(paths: Paths, linears: Iterable[tuple[int, int, Epilogue]], multiprocessors: int) -> set[Unit]:
    """Translation units of a model whose linears are these: rows, columns, what follows."""
    shapes = {(n, k): place for n, k, place in linears}
    found = set()
    for (gates, hidden), place in shapes.items():
        if place != "silu":
            continue
        heads = [k for (n, k), other in shapes.items() if other == "add" and n == hidden and 2 * k != gates]
        for head, qkv in (
            (head, n) for head in heads for (n, _), other in shapes.items() if other == "store"
        ):
            shape = LayerShape(head, hidden, gates // 2, qkv)
            for m in range(GROUP_TOKENS, MOST_TOKENS + 1, GROUP_TOKENS):
                plan = paths.layer(m, shape, multiprocessors)
                if plan is not None:
                    found.add(unit(True, plan))
    return found
