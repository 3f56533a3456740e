"""The variants of products of few tokens, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from llmrs_cli.kernels import attend_decode, attend_few, linear_rows, linear_small
from llmrs_cli.kernels.catalog import HOPPER
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.linear_rows import RowsPlan
from llmrs_cli.kernels.linear_rows import default_plan as default_rows
from llmrs_cli.kernels.linear_small import SmallPlan
from llmrs_cli.kernels.linear_small import default_plan as default_small
from llmrs_cli.kernels.loader import Unit

Few = Callable[..., bool]
"""(device, m, epilogue, weight, out, **source): enqueues and is True, or cannot serve M tokens and is False."""


Sizes = tuple[int, int, int, int]
BOXES: list[Sizes] = [
    (2, 8, 3, 0), (2, 8, 4, 0), (2, 8, 6, 0), (2, 8, 6, 3), (2, 16, 3, 0), (4, 8, 3, 0), (4, 8, 6, 0), (4, 4, 6, 0),
    (1, 8, 6, 0), (1, 16, 6, 0), (1, 16, 6, 4),
]  # fmt: skip
"""Tiles, warps and steps of `linear_small` where the copy engine brings boxes of rows, and steps that are asked for late."""
LONG_ROWS: list[Sizes] = [
    (16, 256, 6, 0), (16, 256, 12, 0), (16, 256, 12, 8), (16, 512, 3, 0), (16, 512, 6, 0), (8, 1024, 3, 0), (8, 1024, 6, 0),
    (8, 1024, 6, 4), (16, 1024, 3, 0),
]  # fmt: skip
"""Warps, values of K and steps of `linear_rows` where it brings pieces of rows, and steps that are asked for late."""


def box_plan(device: CudaDevice, n: int, k: int, sizes: Sizes) -> SmallPlan:
    tiles, warps, depth, late = sizes
    plan = default_small(n, k, device.multiprocessors, device.shared_limit)
    split = min(plan.split, warps)
    tiles = min(tiles, 2 * split)
    return replace(plan, tiles=tiles, warps=warps, split=split, depth=depth, bulk=True, late=late)


def long_rows_plan(device: CudaDevice, n: int, k: int, sizes: Sizes) -> RowsPlan:
    """Split as evenly as it can be while a warp's slice is more than half a step."""
    warps, chunk, depth, late = sizes
    plan = default_rows(n, k, device.multiprocessors, warps, depth)
    plan = replace(plan, resident=1, chunk=chunk, bulk=True, late=late)
    splits = [1, *(split for split in (2, 4, 8, 16) if split <= warps and 2 * k > split * chunk)]
    plans = [replace(plan, split=split) for split in splits]
    return max(plans, key=lambda plan: round(linear_rows.balance(plan, n, k), 2))


def _boxes(sizes: Sizes) -> Few:
    def run(device: CudaDevice, m: int, epilogue: Any, weight: Any, out: Any, **source: Any) -> bool:
        if device.loader.arch != HOPPER or m > linear_small.MAX_TOKENS:
            return False
        (n, k), together = weight.shape, 16 if epilogue == "silu" else 1
        plan = box_plan(device, n, k, sizes)
        _, taken = linear_small.box_ring(plan, m, n, k, "norm" in source, together)
        if taken > device.shared_limit:
            return False
        linear_small.linear_small(device, True, plan, epilogue, weight, out, **source)
        return True

    return run


def _long_rows(sizes: Sizes) -> Few:
    def run(device: CudaDevice, m: int, epilogue: Any, weight: Any, out: Any, **source: Any) -> bool:
        if device.loader.arch != HOPPER or m > linear_rows.MAX_TOKENS:
            return False
        n, k = weight.shape
        plan = long_rows_plan(device, n, k, sizes)
        linear_rows.linear_rows(device, True, plan, epilogue, weight, out, **source)
        return True

    return run


def _ring(held: int, depth: int = linear_small.DEEP, tiles: int = 2) -> Few:
    def run(device: CudaDevice, m: int, epilogue: Any, weight: Any, out: Any, **source: Any) -> bool:
        if m > (linear_small.MAX_NORM_TOKENS if "norm" in source else linear_small.MAX_TOKENS):
            return False
        n, k = weight.shape
        plan = default_small(n, k, device.multiprocessors, device.shared_limit)
        plan = replace(plan, held=held, depth=depth, tiles=tiles)
        if linear_small.shared_bytes(plan, m, k, "norm" in source) > device.shared_limit:
            return False
        linear_small.linear_small(device, True, plan, epilogue, weight, out, **source)
        return True

    return run


def _rows(warps: int, depth: int, blocks: int = 1, split: int = 0) -> Few:
    def run(device: CudaDevice, m: int, epilogue: Any, weight: Any, out: Any, **source: Any) -> bool:
        n, k = weight.shape
        plan = default_rows(n, k, blocks * device.multiprocessors, warps, depth)
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
    **{f"boxes {sizes}": _boxes(sizes) for sizes in BOXES},
    **{f"long rows {sizes}": _long_rows(sizes) for sizes in LONG_ROWS},
}


def units(device: CudaDevice) -> list[Unit]:
    """What all variants compile to, to be built at once and in parallel."""
    few = [linear_small.unit(True, linear_small.SmallPlan(1, 1, tiles=tiles)) for tiles in (1, 2)]
    for warps, depth, blocks in ((16, 4, 1), (16, 6, 1), (8, 4, 2)):
        plan = linear_rows.RowsPlan(1, 1, warps, depth, 2 * blocks)
        few += [linear_rows.unit(True, tokens, plan) for tokens in (1, 2)]
    if device.loader.arch == HOPPER:
        few += [linear_small.unit(True, box_plan(device, 8, 512, box)) for box in BOXES]
        for long in LONG_ROWS:
            few += [linear_rows.unit(True, tokens, long_rows_plan(device, 8, 512, long)) for tokens in (1, 2)]
    attention = [attend_decode.unit(True, d) for d in (64, 128)]
    attention += [attend_few.unit(True, d, attend_few.default_plan(d, 1, little=False)) for d in (64, 128)]
    return list(dict.fromkeys([*few, *attention]))
