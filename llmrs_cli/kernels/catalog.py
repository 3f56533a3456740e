"""All translation units that a model needs: what is built ahead, and what the tests compile everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llmrs_cli.kernels import (
    attend_decode,
    attend_few,
    attend_prefill,
    attend_prompt,
    count_tokens,
    embed,
    gather,
    linear_many,
    linear_rows,
    linear_small,
    linear_wide,
    logprobs,
    many_plans,
    packed_plans,
    read_all,
    rms_norm,
    rope_store,
    sample,
    scatter,
    silu_mul,
    take_rows,
    wide_plans,
)
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.loader import Unit
from llmrs_cli.kernels.marlin_layout import Layout

HEAD_DIMS = (64, 96, 128, 256)
"""Head sizes of the models we know; other multiples of 16 up to 256 compile when they are met."""

HOPPER = packed_plans.HOPPER
MUCH_SHARED = ("sm_80", "sm_90a", "sm_100")
"""Architectures whose blocks may take 160 KiB of shared memory and more."""
STEP_UNITS = tuple(module.UNIT for module in (sample, logprobs, scatter, gather, count_tokens, take_rows))
"""Units that know no 16-bit type."""


def model_units(bf16: bool, head_dim: int, arch: str) -> tuple[Unit, ...]:
    """Units for one 16-bit type and head size."""
    return (*STEP_UNITS, *typed_units(bf16, arch), *head_units(bf16, head_dim, arch))


def typed_units(bf16: bool, arch: str) -> tuple[Unit, ...]:
    """Units that depend on the 16-bit type alone."""
    simple = (module.unit(bf16) for module in (embed, rms_norm, silu_mul, rope_store))
    rows = (linear_rows.unit(bf16, tokens, linear_rows.RowsPlan(1, 1)) for tokens in (1, 2))
    return (*simple, *rows, *linear_small.units(bf16, deep=arch in MUCH_SHARED))


def head_units(bf16: bool, head_dim: int, arch: str) -> tuple[Unit, ...]:
    """Units that depend on the head size."""
    prefill = attend_prefill.unit(bf16, head_dim, attend_prefill.shape_for(head_dim))
    little = arch not in MUCH_SHARED
    few: tuple[Unit, ...] = ()
    if attend_few.serves(head_dim, little):
        few = (attend_few.unit(bf16, head_dim, attend_few.default_plan(head_dim, 1, little)),)
    prompt: tuple[Unit, ...] = ()
    if attend_prompt.serves(head_dim, arch):
        prompt = (attend_prompt.unit(bf16, head_dim, attend_prompt.shape_for(head_dim)),)
    return attend_decode.unit(bf16, head_dim), *few, prefill, *prompt


def packed_units(bf16: bool, group: int, arch: str) -> tuple[Unit, ...]:
    """Units that 4-bit weights of one group size need."""
    return packed_plans.units(bf16, group, arch in MUCH_SHARED, arch == HOPPER)


def all_units(arch: str) -> tuple[Unit, ...]:
    """Every unit that a GPU of this architecture may need, for each 16-bit type and known head size.

    Of 4-bit weights those with the usual groups of 128, in the usual float16; on Hopper in bfloat16 too.
    """
    units = [read_all.UNIT, *STEP_UNITS]
    for bf16 in (True, False):
        units += typed_units(bf16, arch)
        if not bf16 or arch == HOPPER:
            units += packed_units(bf16, 128, arch)
        for head_dim in HEAD_DIMS:
            units += head_units(bf16, head_dim, arch)
    return tuple(units)


def wide_units(
    bf16: bool, linears: Iterable[tuple[int, int, Epilogue]], arch: str, multiprocessors: int
) -> tuple[Unit, ...]:
    """Units for more than a few tokens of linears (N, K, what follows)."""
    if arch != HOPPER:
        return ()
    found = (
        linear_wide.unit(bf16, plan, epilogue)
        for n, k, epilogue in linears
        for plan in wide_plans.plans_ahead(n, k, multiprocessors)
    )
    return tuple(dict.fromkeys(found))


def many_units(
    bf16: bool,
    linears: Iterable[tuple[int, int, Epilogue]],
    sizes: Sequence[int],
    arch: str,
    multiprocessors: int,
) -> tuple[Unit, ...]:
    """The same for as many tokens as one of `sizes`, all of which are many."""
    if arch != HOPPER:
        return ()
    found = (
        linear_many.unit(bf16, plan, epilogue)
        for n, k, epilogue in linears
        if epilogue != "logits"
        for plan in many_plans.plans_ahead(sizes, n, k, epilogue, multiprocessors)
    )
    return tuple(dict.fromkeys(found))


def packed_wide_units(
    bf16: bool, linears: Iterable[tuple[Layout, Epilogue]], arch: str, multiprocessors: int
) -> tuple[Unit, ...]:
    """The same for 4-bit linears (layout, what follows)."""
    return packed_plans.wide_units(bf16, linears, multiprocessors, arch == HOPPER)


def packed_many_units(
    bf16: bool,
    linears: Iterable[tuple[Layout, Epilogue]],
    sizes: Sequence[int],
    arch: str,
    multiprocessors: int,
) -> tuple[Unit, ...]:
    """The same for as many tokens as one of `sizes`, all of which are many."""
    return packed_plans.many_units(bf16, linears, sizes, multiprocessors, arch == HOPPER)
