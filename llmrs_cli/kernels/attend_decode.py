"""Launcher of attend_decode.cu: paged attention of sequences with one query each."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Param, Scalar, Shape, ceil_div
from llmrs_cli.kernels.loader import Unit

WARPS = 4
MAX_GROUP = 16
MIN_CHUNK = 2
ONE_PART = 8
"""Pages of a context that one warp group reads in less time than two take with their merge."""
MAX_PARTS = 128
EXTRA = 4
"""Floats of a partial row beside its D sums."""


def unit(bf16: bool, head_dim: int) -> Unit:
    """The translation unit for one 16-bit type and head size."""
    return Unit("attend_decode", (("BF16", int(bf16)), ("HEAD_DIM", head_dim)))


def shared_bytes(head_dim: int, group: int, little: bool) -> int:
    """Dynamic shared memory of a block: a ring of pages per warp, and the merge buffer.

    `little`: the GPU gives a block less than 160 KiB (sm_86, sm_89, sm_120).
    """
    stages = (2 if head_dim > 128 else 3) - little
    ring = WARPS * stages * 2 * 16 * (head_dim * 2 + 16)
    queries = 16 * (head_dim * 2 + 16) if head_dim > 128 else 0
    return ring + group * max(head_dim + EXTRA, MAX_PARTS) * 4 + queries


def chunk_pages(pages: int, longest: int, shares: int) -> int:
    """Pages of a chunk, for `pages` of all sequences and at most `longest` of one.

    `shares` blocks (of the grid, for each key head) get about one chunk each. At least 2 pages, since a
    partial result costs about as much as one, and no more than MAX_PARTS chunks a sequence. Short contexts
    are not cut at all.
    """
    if longest <= ONE_PART:
        return max(longest, MIN_CHUNK)
    return max(ceil_div(pages, shares), MIN_CHUNK, ceil_div(longest, MAX_PARTS))


def grid_blocks(multiprocessors: int, head_dim: int) -> int:
    """Blocks that fill the GPU once."""
    return multiprocessors * (1 if head_dim > 128 else 2)


def partial_slots(blocks: int, sequences: int, kv_heads: int) -> int:
    """Partial results that a launch may leave."""
    return blocks + sequences * kv_heads + 1


def paged(sequences: int, width: int) -> tuple[Param, ...]:
    """Parameters of decode attention between its queries and what is its own: pages, what describes the step, and out."""
    return (
        Buffer("keys", "u16", ("NB", "Hkv", 64, "D")),
        Buffer("values", "u16", ("NB", "Hkv", 64, "D")),
        Buffer("tables", "i32", ("rows", "MB")),
        Buffer("rows", "i32", ("S",)),
        Buffer("contexts", "i32", ("S",)),
        Buffer("query_start", "i32", (sequences + 1,)),
        Buffer("first_page", "i32", (sequences + 2,)),
        Buffer("out", "u16", ("T", width)),
    )


@cache
def _kernel(bf16: bool, heads: int, kv_heads: int, d: int, sequences: int) -> Kernel:
    params: tuple[Param, ...] = (
        Buffer("q", "u16", ("T", heads, d)),
        *paged(sequences, heads * d),
        Buffer("partials", "f32", ("blocks", "scratch")),
        Buffer("arrivals", "i32", ("pairs",)),
        Scalar("scale", "f32"),
        *(
            Scalar(name, "i32")
            for name in ("sequences", "table_width", "kv_heads", "group", "window", "late")
        ),
    )
    return Kernel(unit(bf16, d), "attend_decode", params)


def attend_decode(
    device: Device,
    bf16: bool,
    q: Any,
    keys: Any,
    values: Any,
    tables: Any,
    rows: Any,
    contexts: Any,
    query_start: Any,
    first_page: Any,
    out: Any,
    partials: Any,
    arrivals: Any,
    *,
    blocks: int,
    scale: float,
    window: int = 0,
    little: bool = False,
    at_once: int = 0,
    late: bool = False,
) -> None:
    """Attention of every sequence that `first_page` gives pages to; its query is token query_start[s].

    q (T, Hq, D), keys and values (NB, Hkv, 64, D), tables (rows, MB), rows and contexts (S,), query_start
    (S + 1,), first_page (S + 2,): pages before each sequence, then `chunk_pages`; out (T, Hq·D). `partials`
    (`partial_slots`, G·(D + 4)) float32 is scratch; `arrivals` (≥ S·Hkv,) int32 holds zeros before and
    after. window 0: none; `little` as in `shared_bytes`; `at_once` as in `launch.Shape`. `late`: behind
    `attend_prefill`, beside which it runs; queries, keys and values are then complete when it begins."""
    sequences, width = rows.size, tables.shape[1]
    _, kv_heads, _, d = keys.shape
    heads = out.shape[1] // d
    group = heads // kv_heads
    if group > MAX_GROUP or d % 16 or d > 256:
        raise EngineFault(f"attend_decode cannot serve {group} query heads a key head of size {d}.")
    assert len(partials) >= partial_slots(blocks, sequences, kv_heads)
    assert partials.shape[1] == group * (d + EXTRA)
    assert arrivals.size >= sequences * kv_heads
    _kernel(bf16, heads, kv_heads, d, sequences).launch(
        device,
        Shape((blocks, 1, 1), (WARPS * 32, 1, 1), shared_bytes(d, group, little), at_once),
        q, keys, values, tables, rows, contexts, query_start, first_page, out, partials, arrivals,
        scale * math.log2(math.e), sequences, width, kv_heads, group, window, late,
    )  # fmt: skip
