"""Launcher of linear_wide.cu: linears of more than a few tokens on Hopper, epilogue fused."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Map, Scalar, Shape, ceil_div
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.loader import Unit
from llmrs_cli.kernels.scratch import Scratch
from llmrs_cli.kernels.tensor_map import tensor_map

EPILOGUES: tuple[Epilogue, ...] = ("store", "add", "silu", "logits")
GROUP_TOKENS = 64
"""Tokens of one warpgroup."""
MAX_GROUPS = 4
MOST_ROWS = {1: 192, 2: 192, 3: 176, 4: 128}
"""Of a tile, by warpgroups: as many as registers hold sums."""
SHARED = 227 << 10


@dataclass(frozen=True, slots=True)
class WidePlan:
    """How one linear is spread."""

    blocks: int
    """Of the grid, a multiple of `cluster`."""
    groups: int
    """Warpgroups that multiply, 64 tokens each."""
    rows: int
    """Of W in a tile, a multiple of 16."""
    cluster: int = 2
    """Blocks that share the tokens that they fetch."""
    slices: int = 1
    """Parts of K that different blocks take."""

    @property
    def stages(self) -> int:
        """Steps in flight: as many as shared memory holds."""
        return min((SHARED - 2048) // ((GROUP_TOKENS * self.groups + self.rows) * 128), 12)

    def tiles(self, m: int, n: int) -> int:
        """Tiles of M tokens and N rows, in whole clusters."""
        return ceil_div(n, self.rows * self.cluster) * self.cluster * ceil_div(m, GROUP_TOKENS * self.groups)


def scratch_sizes(plan: WidePlan, m: int, n: int) -> tuple[int, int]:
    """Elements of a `Scratch`."""
    tiles = plan.tiles(m, n)
    part = GROUP_TOKENS * plan.groups * plan.rows
    return (tiles * plan.slices * part if plan.slices > 1 else 1), tiles


def default_plan(m: int, n: int, multiprocessors: int) -> WidePlan:
    """Tiles that leave the fewest multiprocessors without work in the last turn; K is not cut."""
    groups = min(ceil_div(m, GROUP_TOKENS), MAX_GROUPS)
    blocks = multiprocessors // 2 * 2

    def turns_rows(rows: int) -> int:
        return ceil_div(WidePlan(blocks, groups, rows).tiles(m, n), blocks) * (rows + 16)

    rows = min(range(64, MOST_ROWS[groups] + 1, 16), key=lambda r: (turns_rows(r), -r))
    return WidePlan(blocks, groups, rows)


def unit(bf16: bool, plan: WidePlan) -> Unit:
    """The translation unit that serves a plan."""
    sizes = (("WGS", plan.groups), ("ROWS", plan.rows), ("STAGES", plan.stages), ("CLUSTER", plan.cluster))
    return Unit("linear_wide", (("BF16", int(bf16)), *sizes))


@cache
def _kernel(source: Unit, epilogue: Epilogue, n: int) -> Kernel:
    wide = epilogue in ("add", "logits")
    return Kernel(
        source,
        "linear_wide",
        (
            Map("weight"),
            Map("x"),
            Scalar("alpha", "f32"),
            Buffer("bias", "f32", (n,), optional=True),
            Buffer("out", "f32" if wide else "u16", ("M", n // 2 if epilogue == "silu" else n)),
            Buffer("partials", "f32", ("partials",)),
            Buffer("arrivals", "i32", ("arrivals",)),
            *(Scalar(name, "i32") for name in ("m", "n", "k", "slices", "epilogue")),
        ),
    )


def linear_wide(
    device: Device,
    bf16: bool,
    plan: WidePlan,
    epilogue: Epilogue,
    weight: Any,
    x: Any,
    out: Any,
    scratch: Scratch,
    *,
    bias: Any = None,
    alpha: float = 1.0,
) -> None:
    """out = epilogue(alpha · x · Wᵀ + bias) for any number of tokens; arguments as those of `linear_small`."""
    (m, k), n = x.shape, weight.shape[0]
    if k % 8 or n % 16 or weight.shape[1] != k:
        raise EngineFault(f"linear_wide cannot serve {m} tokens of {tuple(weight.shape)}.")
    scratch.check(*scratch_sizes(plan, m, n))
    share = GROUP_TOKENS * plan.groups // plan.cluster
    shared = plan.stages * (GROUP_TOKENS * plan.groups + plan.rows) * 128 + 1024
    _kernel(unit(bf16, plan), epilogue, n).launch(
        device,
        Shape((plan.blocks, 1, 1), (128 * (plan.groups + 1), 1, 1), shared, 1),
        tensor_map(weight, plan.rows), tensor_map(x, share), alpha, bias, out, scratch.partials, scratch.arrivals,
        m, n, k, plan.slices, EPILOGUES.index(epilogue),
    )  # fmt: skip
