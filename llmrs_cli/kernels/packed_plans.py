"""Which 4-bit kernel serves how many tokens, and how it is spread. Measured on an H200 where it is Hopper's.

above COPY_TOKENS    16-bit products, where the weights have a copy in 16 bits; else
up to 8 tokens       packed_small, where packed_wide has no plan: memory speed, norm and epilogue fused
4 to WIDE_TOKENS     packed_wide, where it has a plan: the same for more tokens, on Hopper
more                 packed_many, where it was measured to be faster than what follows
up to TILE_TOKENS    packed_large: the tensor cores read codes
more                 dequantise, a slab at a time, and cuBLASLt
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from llmrs_cli.kernels import (
    dequantise,
    packed_large,
    packed_many,
    packed_many_plans,
    packed_small,
    packed_wide,
    packed_wide_plans,
    repack,
)
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.loader import Unit
from llmrs_cli.kernels.marlin_layout import Layout
from llmrs_cli.kernels.packed_large import TilePlan
from llmrs_cli.kernels.packed_many_plans import PackedManyPlan
from llmrs_cli.kernels.packed_small import StreamPlan
from llmrs_cli.kernels.packed_wide_plans import PackedWidePlan

HOPPER = "sm_90a"
TILE_TOKENS = {True: 768, False: 64}
"""Most tokens that `packed_large` is taken for: with wgmma, and without."""
WIDE_TOKENS = packed_wide_plans.MOST_TOKENS
"""Most tokens that `packed_wide` is taken for."""
COPY_TOKENS = 128
"""Most tokens of weights with a 16-bit copy that are multiplied as codes: with 256, all of 256 sequences are 2 % slower on an
H200, and a first token after 256 takes 1.1 ms more."""
WARPS = {16: 16, 32: 12, 64: 8, 128: 8}
"""Of a block, by tokens of its tile: as many as leave each thread the registers that it needs."""
LONG = 3
"""Columns for each row of W from which on few tokens are better multiplied by more warps: 4 % less for the 7B's down."""
SLAB_BYTES = 32 << 20
"""Dequantised at a time, so that the L2 cache still holds it when cuBLASLt reads it."""


def stream_plan(multiprocessors: int, layout: Layout, deep: bool, hopper: bool) -> StreamPlan:
    """For few tokens of a linear, on a GPU with much shared memory (`deep`) or little."""
    usual, long = _streams(multiprocessors, deep, hopper)
    return long if layout.columns >= LONG * layout.rows else usual


def _streams(multiprocessors: int, deep: bool, hopper: bool) -> tuple[StreamPlan, StreamPlan]:
    """For most linears, and for those with long K."""
    if not hopper:
        plan = StreamPlan(multiprocessors, 12 if deep else 8, room=(160 if deep else 96) << 10)
        return plan, plan
    usual = StreamPlan(multiprocessors, 12, stages=3, room=220 << 10)
    return usual, replace(usual, warps=16, stages=2)


def wide_plan(multiprocessors: int, m: int, layout: Layout, hopper: bool) -> PackedWidePlan | None:
    """For M tokens, if `packed_wide` is to serve them."""
    if not hopper or m > WIDE_TOKENS:
        return None
    return packed_wide_plans.plan_for(m, layout, multiprocessors)


def many_plan(
    multiprocessors: int, m: int, layout: Layout, epilogue: Epilogue, hopper: bool
) -> PackedManyPlan | None:
    """For M tokens and what follows, if `packed_many` is to serve them."""
    if not hopper or m <= WIDE_TOKENS or epilogue == "logits":
        return None
    return packed_many_plans.chosen(m, layout, epilogue, multiprocessors)


def tile_sizes(group: int, hopper: bool) -> tuple[int, ...]:
    """Tokens that tiles may have. On Hopper few tokens are `packed_wide`'s; small groups leave other GPUs too few
    registers for large tiles."""
    if hopper:
        return 64, 128
    return (16, 32, 64) if group == 128 else (16, 32)


def tile_plan(multiprocessors: int, m: int, group: int, deep: bool, hopper: bool) -> TilePlan:
    """For M tokens: the smallest tile that holds them, or the largest one; 64 are the better for up to 192."""
    sizes = tile_sizes(group, hopper)
    tokens = 64 if 64 < m <= 192 else next((size for size in sizes if size >= m), sizes[-1])
    return _tiles(multiprocessors, min(tokens, sizes[-1]), deep, hopper)


def _tiles(multiprocessors: int, tokens: int, deep: bool, hopper: bool) -> TilePlan:
    """Tiles of so many tokens."""
    stages = 6 if hopper and tokens < 128 else 4 if deep else 3
    return TilePlan(multiprocessors, tokens, WARPS[tokens], stages, resident=1)


def units(bf16: bool, group: int, deep: bool, hopper: bool) -> tuple[Unit, ...]:
    """Every translation unit that 4-bit weights of one group size need."""
    plans = (_tiles(1, size, deep, hopper) for size in tile_sizes(group, hopper))
    return (
        repack.unit(bf16),
        dequantise.unit(bf16, group),
        *(packed_small.unit(bf16, group, plan) for plan in dict.fromkeys(_streams(1, deep, hopper))),
        *(packed_large.unit(bf16, group, plan) for plan in plans),
    )


def wide_units(
    bf16: bool, linears: Iterable[tuple[Layout, Epilogue]], multiprocessors: int, hopper: bool
) -> tuple[Unit, ...]:
    """Units of `packed_wide` for these linears, each with what follows it."""
    found = (
        packed_wide.unit(bf16, layout, plan, epilogue)
        for layout, epilogue in linears
        for m in packed_wide_plans.STEPS_OF_TOKENS
        if (plan := wide_plan(multiprocessors, m, layout, hopper)) is not None
    )
    return tuple(dict.fromkeys(found))


def many_units(
    bf16: bool,
    linears: Iterable[tuple[Layout, Epilogue]],
    sizes: Sequence[int],
    multiprocessors: int,
    hopper: bool,
) -> tuple[Unit, ...]:
    """Units of `packed_many` for the same and as many tokens as one of `sizes`, all of which are many."""
    if not hopper:
        return ()
    fused = [(layout, epilogue) for layout, epilogue in linears if epilogue != "logits"]
    found = packed_many_plans.plans_ahead(sizes, fused, multiprocessors)
    return tuple(dict.fromkeys(packed_many.unit(bf16, plan, epilogue) for plan, epilogue in found))
