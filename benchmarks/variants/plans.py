"""The variants of products of few tokens, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from llmrs_cli.kernels import attend_decode, attend_few, linear_rows, linear_small
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.loader import Unit

Few = Callable[..., bool]
"""(device, m, epilogue, weight, out, **source): enqueues and is True, or cannot serve M tokens and is False."""


def _ring(held: int, depth: int = linear_small.DEEP, tiles: int = 2) -> Few:
    def run(device: CudaDevice, m: int, epilogue: Any, weight: Any, out: Any, **source: Any) -> bool:
        if m > (linear_small.MAX_NORM_TOKENS if "norm" in source else linear_small.MAX_TOKENS):
            return False
        n, k = weight.shape
        plan = linear_small.default_plan(n, k, device.multiprocessors, device.shared_limit)
        plan = replace(plan, held=held, depth=depth, tiles=tiles)
        if linear_small.shared_bytes(plan, m, k, "norm" in source) > device.shared_limit:
            return False
        linear_small.linear_small(device, True, plan, epilogue, weight, out, **source)
        return True

    return run


def _rows(warps: int, depth: int, blocks: int = 1, split: int = 0) -> Few:
    def run(device: CudaDevice, m: int, epilogue: Any, weight: Any, out: Any, **source: Any) -> bool:
        n, k = weight.shape
        plan = linear_rows.default_plan(n, k, blocks * device.multiprocessors, warps, depth)
        plan = replace(plan, resident=2 * blocks, split=split or plan.split, at_once=blocks)
        if (
            m > linear_rows.MAX_TOKENS
            or linear_rows.shared_bytes(plan, m, n, k) > device.shared_limit // blocks
        ):
            return False
        linear_rows.linear_rows(device, True, plan, epilogue, weight, out, **source)
        return True

    return run


FEW: dict[str, Few] = {
    "ring": _ring(1),
    "ring, sums wait": _ring(8),
    "rows, 4 ahead": _rows(16, 4),
    "rows, 6 ahead": _rows(16, 6),
    **{f"rows, 6 ahead, split {split}": _rows(16, 6, split=split) for split in (1, 2, 4, 8, 16)},
    "rows, 2 blocks of 8 warps": _rows(8, 4, blocks=2),
}


def units() -> list[Unit]:
    """What all variants compile to, to be built at once and in parallel."""
    few = [linear_small.unit(True, linear_small.SmallPlan(1, 1, tiles=tiles)) for tiles in (1, 2)]
    for warps, depth, blocks in ((16, 4, 1), (16, 6, 1), (8, 4, 2)):
        plan = linear_rows.RowsPlan(1, 1, warps, depth, 2 * blocks)
        few += [linear_rows.unit(True, tokens, plan) for tokens in (1, 2)]
    attention = [attend_decode.unit(True, d) for d in (64, 128)]
    attention += [attend_few.unit(True, d, attend_few.default_plan(d, 1, little=False)) for d in (64, 128)]
    return list(dict.fromkeys([*few, *attention]))
