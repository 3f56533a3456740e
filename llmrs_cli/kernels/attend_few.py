"""Launcher of attend_few.cu: paged attention of sequences with one query each, as many as the GPU can take up at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.attend_decode import paged
from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Scalar, Shape
from llmrs_cli.kernels.loader import Unit

HEADS = (32, 64, 96, 128)
"""Sizes of heads that the kernel knows."""
SMALL_HEADS = (32, 64)
"""Those of which two blocks fit beside each other where a block gets less than 160 KiB (sm_86, sm_89, sm_120)."""
MAX_GROUP = 16
SPREAD, FREE_TOKENS = 1.25, 256
"""A block may read so many times as many tokens as an even share of all, and so many more."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """What turns the qkv projection into queries, keys and values, as in `rope_store`."""

    table: Any
    """(P, D) float32"""
    q_norm: Any
    """(D,) float32 or None"""
    k_norm: Any
    eps: float


@dataclass(frozen=True, slots=True)
class FewPlan:
    """How a key head of a sequence is served."""

    blocks: int
    """1, or on Hopper 2, 4 or 8: a cluster"""
    warps: int = 4
    stages: int = 2
    """Tiles that each warp has on their way"""

    @property
    def at_once(self) -> int:
        """As in `launch.Shape`: blocks of which two fill a multiprocessor must not crowd on it in threes."""
        return 2 if self.blocks <= 2 else 0


def default_plan(head_dim: int, blocks: int, little: bool) -> FewPlan:
    """As many copies on their way as leave room for two blocks, and for one of prefill attention beside them.

    `little` as in `attend_decode.shared_bytes`.
    """
    return FewPlan(blocks, stages=2 if little or head_dim > 64 else 4)


def serves(head_dim: int, little: bool) -> bool:
    """Whether the kernel knows heads of this size, and two of its blocks fit on a multiprocessor."""
    return head_dim in (SMALL_HEADS if little else HEADS)


def sizes(head_dim: int, arch: str, little: bool) -> tuple[int, ...]:
    """Blocks that may share a key head of a sequence on this GPU, most first; none: it is not served."""
    if not serves(head_dim, little):
        return ()
    return (8, 4, 2, 1) if arch == "sm_90a" else (1,)


def choose(sizes: Sequence[int], places: int, decodes: int, longest: int, tokens: int) -> int:
    """Blocks for a key head of each of `decodes` sequences, the most that all run at once; 0: `attend_decode` is better.

    `places`: blocks that the GPU holds for each key head. Blocks do not help each other across sequences, so the
    `longest` context must not stand out too far from `tokens`, the sum of all.
    """
    blocks = next((size for size in sizes if decodes * size <= places), 0)
    return blocks if blocks and longest / blocks <= SPREAD * tokens / places + FREE_TOKENS else 0


def unit(bf16: bool, head_dim: int, plan: FewPlan) -> Unit:
    """The translation unit for one 16-bit type, head size and shape; it holds every number of blocks."""
    sizes = (("WARPS", plan.warps), ("STAGES", plan.stages))
    return Unit("attend_few", (("BF16", int(bf16)), ("HEAD_DIM", head_dim), *sizes))


def shared_bytes(head_dim: int, plan: FewPlan, group: int) -> int:
    """Dynamic shared memory of a block: its tiles, in their place what its warps found, and what other blocks send it."""
    sent = plan.blocks * group * (head_dim // plan.blocks * 4 + 16) + 16 if plan.blocks > 1 else 0
    return plan.warps * plan.stages * 2 * 16 * (head_dim * 2 + 16) + sent


@cache
def _kernel(bf16: bool, heads: int, kv_heads: int, d: int, sequences: int, plan: FewPlan) -> Kernel:
    return Kernel(
        unit(bf16, d, plan),
        f"attend_few_{plan.blocks}",
        (
            Buffer("qkv", "u16", ("T", (heads + 2 * kv_heads) * d)),
            *paged(sequences, heads * d),
            Buffer("rotations", "f32", ("P", "D")),
            Buffer("q_norm", "f32", ("D",), optional=True),
            Buffer("k_norm", "f32", ("D",), optional=True),
            Scalar("eps", "f32"),
            Scalar("scale", "f32"),
            *(Scalar(name, "i32") for name in ("table_width", "kv_heads", "group", "window", "late")),
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
    plan: FewPlan,
    scale: float,
    rotation: Rotation,
    window: int = 0,
    count: int | None = None,
    late: bool = False,
) -> None:
    """As `rope_store` and then `attend_decode`: blocks of their own for each key head of each sequence.

    qkv (T, (Hq + 2·Hkv)·D) 16-bit, the projection as it is; the newest keys and values are stored in their pages;
    the other arrays as those of `attend_decode`. Those that describe the step must be complete before its first kernel.
    Sequences from `count` on (None: all) do not decode, and some sequence before it does. `late`: behind
    `attend_prefill`, beside which it runs; the projection is then complete when it begins.
    """
    sequences, width = rows.size, tables.shape[1]
    _, kv_heads, _, d = keys.shape
    heads = out.shape[1] // d
    group = heads // kv_heads
    if group > MAX_GROUP or d not in HEADS:
        raise EngineFault(f"attend_few cannot serve {group} query heads a key head of size {d}.")
    count = sequences if count is None else count
    assert count <= sequences
    _kernel(bf16, heads, kv_heads, d, sequences, plan).launch(
        device,
        Shape((plan.blocks * kv_heads, count, 1), (plan.warps * 32, 1, 1), shared_bytes(d, plan, group), plan.at_once),
        qkv, keys, values, tables, rows, contexts, query_start, first_page, out,
        rotation.table, rotation.q_norm, rotation.k_norm, rotation.eps, scale * math.log2(math.e),
        width, kv_heads, group, window, late,
    )  # fmt: skip
