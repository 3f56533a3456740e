"""Launcher of attend_prefill.cu: paged causal attention of sequences with many queries each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Param, Scalar, Shape
from llmrs_cli.kernels.loader import Unit

TILE = 64
"""Queries that the tiles of a step are counted in; a block takes one tile or several."""


@dataclass(frozen=True, slots=True)
class PrefillShape:
    """How a block is built: warps, 16-query tiles a warp, blocks that share a multiprocessor."""

    warps: int
    m_tiles: int
    resident: int

    @property
    def queries(self) -> int:
        """Queries of one block."""
        return self.warps * 16 * self.m_tiles


def shape_for(head_dim: int) -> PrefillShape:
    """The shape that measured fastest for a head size."""
    return PrefillShape(4, 1, 1 if head_dim > 128 else 2)


def unit(bf16: bool, head_dim: int, shape: PrefillShape) -> Unit:
    """The translation unit for one 16-bit type, head size and shape."""
    sizes = (("WARPS", shape.warps), ("M_TILES", shape.m_tiles), ("RESIDENT", shape.resident))
    return Unit("attend_prefill", (("BF16", int(bf16)), ("HEAD_DIM", head_dim), *sizes))


def shared_bytes(head_dim: int, shape: PrefillShape, little: bool) -> int:
    """Dynamic shared memory of a block: two pages of keys and values; large heads' queries too, and one page
    where the GPU gives a block `little` (sm_86, sm_89, sm_120)."""
    row, large = head_dim * 2 + 16, head_dim > 128
    return row * ((2 if little and large else 4) * 64 + (shape.queries if large else 0))


def tiled(sequences: int, width: int) -> tuple[Param, ...]:
    """Parameters of prompt attention from pages to out: what describes the step."""
    return (
        Buffer("tables", "i32", ("rows", "MB")),
        Buffer("rows", "i32", ("S",)),
        Buffer("contexts", "i32", ("S",)),
        Buffer("query_start", "i32", (sequences + 1,)),
        Buffer("first_tile", "i32", (sequences + 1,)),
        Buffer("out", "u16", ("T", width)),
    )


NUMBERS: tuple[Param, ...] = (
    Scalar("scale", "f32"),
    *(Scalar(name, "i32") for name in ("sequences", "table_width", "heads", "kv_heads", "window")),
)
"""What prompt attention takes last."""


@cache
def _kernel(bf16: bool, heads: int, d: int, sequences: int, shape: PrefillShape) -> Kernel:
    params: tuple[Param, ...] = (
        Buffer("q", "u16", ("T", "Hq", "D")),
        Buffer("keys", "u16", ("NB", "Hkv", 64, "D")),
        Buffer("values", "u16", ("NB", "Hkv", 64, "D")),
        *tiled(sequences, heads * d),
        *NUMBERS,
    )
    return Kernel(unit(bf16, d, shape), "attend_prefill", params)


def attend_prefill(
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
    *,
    tiles: int,
    scale: float,
    window: int = 0,
    little: bool = False,
    shape: PrefillShape | None = None,
) -> None:
    """Attention of every sequence that `first_tile` gives tiles to, TILE queries a tile.

    q (T, Hq, D), keys and values (NB, Hkv, 64, D), tables (rows, MB), rows and contexts (S,), query_start and first_tile
    (S + 1,), out (T, Hq·D). `tiles` is at least the number of tiles; more only start empty blocks.
    `little` as in `shared_bytes`.
    """
    _, heads, d = q.shape
    sequences, width = rows.size, tables.shape[1]
    shape = shape or shape_for(d)
    if d % 16 or d > 256 or shape.queries % TILE:
        raise EngineFault(f"attend_prefill cannot serve heads of size {d}.")
    _kernel(bf16, heads, d, sequences, shape).launch(
        device,
        Shape((heads, tiles, 1), (shape.warps * 32, 1, 1), shared_bytes(d, shape, little)),
        q, keys, values, tables, rows, contexts, query_start, first_tile, out,
        scale * math.log2(math.e), sequences, width, heads, keys.shape[1], window,
    )  # fmt: skip
