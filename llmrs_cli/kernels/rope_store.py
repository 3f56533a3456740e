"""Launcher of rope_store.cu: head norms, rotation, keys and values into their pages."""

from __future__ import annotations

from functools import cache
from typing import Any

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Param, Scalar, Shape, ceil_div
from llmrs_cli.kernels.loader import Unit

THREADS = 128
MANY_TOKENS, MANY_TURNS = 512, 4
"""From how many tokens on a group of lanes has so many heads on their way at once."""
LANE_VALUES = 8
"""Of a head, that a lane turns."""
MAX_HEAD_DIM = 256


def unit(bf16: bool) -> Unit:
    """The translation unit for one 16-bit type."""
    return Unit("rope_store", (("BF16", int(bf16)),))


@cache
def _kernel(bf16: bool, width: int, many: bool) -> Kernel:
    params: tuple[Param, ...] = (
        Buffer("qkv", "u16", ("T", width)),
        Buffer("positions", "i32", ("T",)),
        Buffer("slots", "i32", ("T",)),
        Buffer("table", "f32", ("P", "D")),
        Buffer("q_norm", "f32", ("D",), optional=True),
        Buffer("k_norm", "f32", ("D",), optional=True),
        Buffer("q", "u16", ("T", "Hq", "D")),
        Buffer("keys", "u16", ("NB", "Hkv", 64, "D")),
        Buffer("values", "u16", ("NB", "Hkv", 64, "D")),
        Buffer("first_tile", "i32", ("bounds",), optional=True),
        Buffer("attended", "u16", ("T", "Hq·D"), optional=True),
        *(Scalar(name, "i32") for name in ("tokens", "heads", "kv_heads", "d", "lanes_log")),
        Scalar("eps", "f32"),
        Scalar("sequences", "i32"),
    )
    return Kernel(unit(bf16), "rope_store_many" if many else "rope_store", params)


def rope_store(
    device: Device,
    bf16: bool,
    qkv: Any,
    positions: Any,
    slots: Any,
    table: Any,
    norms: tuple[Any, Any],
    eps: float,
    q: Any,
    keys: Any,
    values: Any,
    first_tile: Any = None,
    attended: Any = None,
) -> None:
    """Split qkv (T, (Hq + 2·Hkv)·D): rotated queries to q (T, Hq, D), keys and values to their slots (T,).

    `norms` are the per-head norms of queries and keys, or None each. A slot of -1 is padding: nothing is stored, and its
    row of `attended` (T, Hq·D), if given, becomes zeros. `first_tile` as `attend_prefill` takes it, of a step with prompts:
    the sequences before the first prompt are left to `attend_few`.
    """
    tokens, heads, d = q.shape
    if d % LANE_VALUES or d > MAX_HEAD_DIM:
        raise EngineFault(f"rope_store cannot turn heads of {d} values.")
    kv_heads = keys.shape[1]
    total, lanes_log = heads + 2 * kv_heads, (d // LANE_VALUES - 1).bit_length()
    sequences = 0 if first_tile is None else first_tile.size - 1
    many = tokens >= MANY_TOKENS
    together = (THREADS >> lanes_log) * (MANY_TURNS if many else 1)
    _kernel(bf16, total * d, many).launch(
        device,
        Shape((ceil_div(tokens * total, together), 1, 1), (THREADS, 1, 1)),
        qkv, positions, slots, table, *norms, q, keys, values, first_tile, attended,
        tokens, heads, kv_heads, d, lanes_log, eps, sequences,
    )  # fmt: skip
