"""Launcher of gather.cu: token ids, slots and scored targets of a step."""

from __future__ import annotations

from typing import Any

from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Param, Scalar, Shape, ceil_div
from llmrs_cli.kernels.loader import Unit

UNIT = Unit("gather")
_PARAMS: tuple[Param, ...] = (
    Buffer("pool", "i32", ("R", "P")),
    Buffer("tables", "i32", ("R", "MB")),
    Buffer("rows", "i32", ("T",)),
    Buffer("positions", "i32", ("T",)),
    Buffer("ids", "i32", ("T",)),
    Buffer("slots", "i32", ("T",)),
    Buffer("scored", "i32", ("S",)),
    Buffer("targets", "i32", ("S",)),
    *(Scalar(name, "i32") for name in ("tokens", "scores", "pool_width", "table_width")),
)


_KERNEL = Kernel(UNIT, "gather", _PARAMS)


def gather(
    device: Device,
    pool: Any,
    tables: Any,
    rows: Any,
    positions: Any,
    ids: Any,
    slots: Any,
    scored: Any,
    targets: Any,
) -> None:
    """Fill ids and slots (T,) from rows and positions (T,), and targets (S,) from scored (S,)."""
    tokens, scores = ids.size, scored.size
    grid = ceil_div(max(tokens, scores), 256)
    _KERNEL.launch(
        device,
        Shape((grid, 1, 1), (256, 1, 1)),
        pool, tables, rows, positions, ids, slots, scored, targets, tokens, scores, pool.shape[1], tables.shape[1],
    )  # fmt: skip
