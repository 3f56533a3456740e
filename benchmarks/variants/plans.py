"""The variants of products by name: of few tokens as calls, of more tokens as plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cupy as cp

from llmrs_cli.kernels import attend_decode, linear_mid, linear_rows, linear_small
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.linear_mid import MidPlan, MidScratch
from llmrs_cli.kernels.loader import Unit

Few = Callable[..., bool]
"""(device, m, epilogue, weight, out, **source): enqueues and is True, or cannot serve M tokens and is False."""
MIDDLE_TOKENS = (16, 32, 40, 64, 96, 128, 192, 256)


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


def _rows(warps: int, depth: int, blocks: int = 1) -> Few:
    def run(device: CudaDevice, m: int, epilogue: Any, weight: Any, out: Any, **source: Any) -> bool:
        n, k = weight.shape
        plan = linear_rows.default_plan(n, k, blocks * device.multiprocessors, warps, depth)
        plan = replace(plan, resident=2 * blocks)
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
    "ring, sums wait, one tile": _ring(8, tiles=1),
    "rows, 16 warps, 4 ahead": _rows(16, 4),
    "rows, 16 warps, 6 ahead": _rows(16, 6),
    "rows, 2 blocks of 8 warps": _rows(8, 4, blocks=2),
}


def _mid(
    warps: int, stages: int, resident: int = 1, even: bool = False
) -> Callable[[CudaDevice, int, int, int], MidPlan]:
    def plan_for(device: CudaDevice, m: int, n: int, k: int) -> MidPlan:
        plan = linear_mid.default_plan(m, n, k, resident * device.multiprocessors, warps, stages, even)
        if plan.shared * resident > device.shared_limit:
            plan = replace(plan, stages=3)
        return replace(plan, resident=resident if plan.shared * resident <= device.shared_limit else 1)

    return plan_for


MIDDLE = {
    "128 rows, 4 stages": _mid(8, 4),
    "128 rows, 3 stages": _mid(8, 3),
    "256 rows, 4 stages": _mid(16, 4),
    "128 rows, 2 blocks": _mid(8, 4, resident=2),
    "128 rows, even": _mid(8, 4, even=True),
    "256 rows, even": _mid(16, 4, even=True),
}


def scratch_for(plan: MidPlan, m: int, n: int) -> MidScratch:
    sums, tiles = linear_mid.scratch_sizes(plan, m, n)
    return MidScratch(cp.zeros(sums, cp.float32), cp.zeros(tiles, cp.int32))


def units(device: CudaDevice) -> list[Unit]:
    """What all variants compile to, to be built at once and in parallel."""
    few = [linear_small.unit(True, linear_small.SmallPlan(1, 1, tiles=tiles)) for tiles in (1, 2)]
    for warps, depth, blocks in ((16, 4, 1), (16, 6, 1), (8, 4, 2)):
        plan = linear_rows.RowsPlan(1, 1, warps, depth, 2 * blocks)
        few += [linear_rows.unit(True, tokens, plan) for tokens in (1, 2)]
    middle = (plan_for(device, m, 4096, 4096) for plan_for in MIDDLE.values() for m in MIDDLE_TOKENS)
    attention = (attend_decode.unit(True, d, rope) for d in (64, 128) for rope in (False, True))
    return list(dict.fromkeys([*few, *(linear_mid.unit(True, plan) for plan in middle), *attention]))
