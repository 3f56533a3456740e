"""Launcher of attend_few.cu: paged attention of a few sequences with one query each, on Hopper."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.attend_decode import paged
from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Scalar, Shape
from llmrs_cli.kernels.loader import Unit

WARPS, BLOCKS, STAGES = 4, 8, 2
"""Of a block, of a cluster; tiles that each warp has on their way."""
MAX_GROUP = 16
STRIDE_EXTRA = 4
"""Floats of a partial row beside its D sums."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """What turns the qkv projection into queries, keys and values, as in `rope_store`."""

    table: Any
    """(P, D) float32"""
    q_norm: Any
    """(D,) float32 or None"""
    k_norm: Any
    eps: float


def serves(head_dim: int) -> bool:
    """Whether heads have a size that the kernel knows."""
    return head_dim in (32, 64, 96, 128)


def unit(bf16: bool, head_dim: int) -> Unit:
    """The translation unit for one 16-bit type and head size."""
    return Unit("attend_few", (("BF16", int(bf16)), ("HEAD_DIM", head_dim)))


def shared_bytes(head_dim: int, group: int) -> int:
    """Dynamic shared memory of a block: its ring, what its warps and then the block found."""
    ring = WARPS * STAGES * 2 * 16 * (head_dim * 2 + 16)
    return ring + (WARPS + 1) * group * (head_dim + STRIDE_EXTRA) * 4


@cache
def _kernel(bf16: bool, heads: int, kv_heads: int, d: int, sequences: int) -> Kernel:
    return Kernel(
        unit(bf16, d),
        "attend_few",
        (
            Buffer("qkv", "u16", ("T", (heads + 2 * kv_heads) * d)),
            *paged(sequences, heads * d),
            Buffer("rotations", "f32", ("P", "D")),
            Buffer("q_norm", "f32", ("D",), optional=True),
            Buffer("k_norm", "f32", ("D",), optional=True),
            Scalar("eps", "f32"),
            Scalar("scale", "f32"),
            *(Scalar(name, "i32") for name in ("table_width", "kv_heads", "group", "window")),
        ),
    )


def attend_few(
    device: Device,
    bf16: bool,
    qkv: Any,
    keys: Any,
    values: Any,
    tables: Any,
    rows: Any,
    contexts: Any,
    query_start: Any,
    first_page: Any,
    out: Any,
    *,
    scale: float,
    rotation: Rotation,
    window: int = 0,
) -> None:
    """As `rope_store` and then `attend_decode`, for few sequences: a cluster of blocks for each of their key heads.

    qkv (T, (Hq + 2·Hkv)·D) 16-bit, the projection as it is; the newest keys and values are stored in their pages;
    the other arrays as those of `attend_decode`. Those that describe the step must be complete before its first kernel.
    """
    sequences, width = rows.size, tables.shape[1]
    _, kv_heads, _, d = keys.shape
    heads = out.shape[1] // d
    group = heads // kv_heads
    if group > MAX_GROUP or not serves(d):
        raise EngineFault(f"attend_few cannot serve {group} query heads a key head of size {d}.")
    _kernel(bf16, heads, kv_heads, d, sequences).launch(
        device,
        Shape((BLOCKS * kv_heads, sequences, 1), (WARPS * 32, 1, 1), shared_bytes(d, group)),
        qkv, keys, values, tables, rows, contexts, query_start, first_page, out,
        rotation.table, rotation.q_norm, rotation.k_norm, rotation.eps, scale * math.log2(math.e),
        width, kv_heads, group, window,
    )  # fmt: skip
