"""Launcher of attend_prompt.cu: paged causal attention of prompts on Hopper, by its copy engine and wgmma."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.attend_prefill import NUMBERS, tiled
from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Map, Shape, ceil_div
from llmrs_cli.kernels.loader import Unit
from llmrs_cli.kernels.tensor_map import tensor_map

HEADS = (64, 128)
"""Sizes of heads that the kernel knows."""
PAGE = 64
"""Tokens of a page, the rows of a box."""
ALIGNMENT = 1024
"""Of what the copy engine swizzles; a block asks for so many bytes more."""


@dataclass(frozen=True, slots=True)
class PromptShape:
    """How a block is built."""

    groups: int = 2
    """Warpgroups of 64 rows; a row is a query of one head"""
    keys: int = 128
    """Of a step: one page or two"""
    stages: int = 2
    """Steps in the ring"""
    turns: bool = True
    """Whether the warpgroups take turns at the tensor cores"""


def shape_for(head_dim: int) -> PromptShape:
    """The shape for a head size."""
    return PromptShape(stages=2 if head_dim > 64 else 4)


def serves(head_dim: int, arch: str) -> bool:
    """Whether the kernel knows heads of this size, and the GPU its instructions."""
    return arch == "sm_90a" and head_dim in HEADS


def unit(bf16: bool, head_dim: int, shape: PromptShape) -> Unit:
    """The translation unit for one 16-bit type, head size and shape."""
    sizes = (
        ("WGS", shape.groups),
        ("KEYS", shape.keys),
        ("STAGES", shape.stages),
        ("TURNS", int(shape.turns)),
    )
    return Unit("attend_prompt", (("BF16", int(bf16)), ("HEAD_DIM", head_dim), *sizes))


def shared_bytes(head_dim: int, shape: PromptShape) -> int:
    """Dynamic shared memory of a block: its queries and the next ones, and stages of keys and values."""
    return 2 * (shape.groups * 64 + shape.stages * shape.keys) * head_dim * 2 + ALIGNMENT


@cache
def _kernel(bf16: bool, heads: int, d: int, sequences: int, shape: PromptShape) -> Kernel:
    return Kernel(
        unit(bf16, d, shape),
        "attend_prompt",
        (
            Map("keys"),
            Map("values"),
            Buffer("q", "u16", ("T", heads, d)),
            *tiled(sequences, heads * d),
            Buffer("drawn", "i32", (1,)),
            *NUMBERS,
        ),
    )


def attend_prompt(
    device: Device,
    bf16: bool,
    q: Any,
    keys: Any,
    values: Any,
    tables: Any,
    rows: Any,
    contexts: Any,
    query_start: Any,
    first_tile: Any,
    out: Any,
    drawn: Any,
    *,
    tiles: int,
    multiprocessors: int,
    scale: float,
    window: int = 0,
    shape: PromptShape | None = None,
) -> None:
    """As `attend_prefill`, whose arrays and tiles these are.

    `drawn` (1,) int32 holds 0, and does again at the end. What is stored of keys and values must be contiguous.
    """
    _, heads, d = q.shape
    sequences, width, kv_heads = rows.size, tables.shape[1], keys.shape[1]
    shape = shape or shape_for(d)
    if d not in HEADS or heads % kv_heads:
        raise EngineFault(f"attend_prompt cannot serve {heads} heads of size {d} with {kv_heads} of keys.")
    if keys.shape != values.shape or keys.shape[2:] != (PAGE, d):
        raise EngineFault(f"attend_prompt cannot read pages of {keys.shape} and {values.shape}.")
    _kernel(bf16, heads, d, sequences, shape).launch(
        device,
        Shape(
            (min(multiprocessors, tiles * kv_heads * ceil_div(heads // kv_heads, shape.groups)), 1, 1),
            (128 * (shape.groups + 1), 1, 1),
            shared_bytes(d, shape),
        ),
        tensor_map(keys.reshape(-1, d), PAGE), tensor_map(values.reshape(-1, d), PAGE),
        q, tables, rows, contexts, query_start, first_tile, out, drawn,
        scale * math.log2(math.e), sequences, width, heads, kv_heads, window,
    )  # fmt: skip
