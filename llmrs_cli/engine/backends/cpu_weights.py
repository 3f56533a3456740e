"""Canonical weights → the byte streams that the CPU loops read, as handles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmrs_cli.engine.arrays import Floats, Ints
from llmrs_cli.engine.backends.cpu_fill import Filler, Plain, heads_of, is_direct
from llmrs_cli.engine.weights.packed import Dense, Packed8, Permuted4, Stored, Tiles4, Words4, canonical
from llmrs_cli.kernels.simd import layout
from llmrs_cli.kernels.simd.layout import LANES, WORD, Arena, Bytes, Layout

DENSE_FORMS = {"float32": layout.SINGLE, "float16": layout.HALF, "bfloat16": layout.BRAIN}
FORM_NAMES = {layout.FOUR: "4 bit", layout.EIGHT: "8 bit"} | {
    form: name for name, form in DENSE_FORMS.items()
}
Ordered = Plain | Words4 | Tiles4
"""Forms with their columns in order."""


@dataclass(frozen=True, slots=True)
class CpuLinear:
    """A linear layer, or a table of rows, as tiles of sixteen outputs."""

    shape: tuple[int, int]
    note: str
    stream: Bytes
    tiles: Ints
    """(tiles, 2): first output and number of outputs"""
    bias: Floats
    """(tiles · 16,), zeros where there is none"""
    order: tuple[int, int, int, int, int, int]
    """form, wide, zeros, group, groups, bytes of a tile"""
    halves: bool
    """Made of two equal parts, so that a gate tile and its up tile can be paired."""
    inputs: Ints | None = None
    """(K,): which input each column belongs to, where that is not its own."""


def make_linear(
    parts: Sequence[Stored], bias: Sequence[Dense | None], arena: Arena, filler: Filler
) -> CpuLinear:
    """Stack parts of equal K along N in memory of `arena`; each starts a tile of its own."""
    heights = [part.shape[0] for part in parts]
    ordered, inputs = _in_order(parts)
    ready, order, why = _common(ordered)
    stream = arena.take(sum(layout.tile_count(rows) for rows in heights) * order.tile_bytes)
    start = 0
    for part in ready:
        size = layout.tile_count(part.shape[0]) * order.tile_bytes
        filler.fill(stream[start : start + size], order, part)
        start += size
    return CpuLinear(
        shape=(sum(heights), order.columns),
        note=f"{FORM_NAMES[order.form]}, groups of {order.group}"
        if order.head_vectors
        else FORM_NAMES[order.form] + why,
        stream=stream,
        tiles=layout.tile_map(heights),
        bias=_stack_bias(heights, bias),
        order=(order.form, order.wide, order.zeros, order.group, order.groups, order.tile_bytes),
        halves=len(heights) == 2 and heights[0] == heights[1],
        inputs=inputs,
    )


def _in_order(parts: Sequence[Stored]) -> tuple[Sequence[Ordered], Ints | None]:
    """The parts as they are stored, and the input of each column if all were sorted in one way.

    Parts that were sorted each in its own way are widened: x can be sorted only once.
    """
    parts = [
        part if isinstance(part, Words4 | Tiles4) and is_direct(part) else canonical(part) for part in parts
    ]
    orders = [part.inputs for part in parts if isinstance(part, Permuted4)]
    if len(orders) == len(parts) and all(np.array_equal(order, orders[0]) for order in orders):
        return [part.weight if isinstance(part, Permuted4) else part for part in parts], orders[0]
    return [Dense(part.dequantise()) if isinstance(part, Permuted4) else part for part in parts], None


def _common(parts: Sequence[Ordered]) -> tuple[Sequence[Ordered], Layout, str]:
    """Parts of one layout, that layout, and a reason if they had to be widened for it."""
    layouts = [choose(part) for part in parts]
    first = layouts[0]
    if first is not None and all(other == first for other in layouts):
        return parts, first, ""
    why = " (groups are no whole words)" if None in layouts else " (parts differ)"
    wide = [Dense(part.dequantise()) for part in parts]
    columns = wide[0].shape[1]
    return wide, Layout(layout.SINGLE, columns, columns + columns % 2), why


def choose(weight: Ordered) -> Layout | None:
    """The layout of one weight; None where its groups do not fall on whole words."""
    columns = weight.shape[1]
    if isinstance(weight, Dense):
        return Layout(DENSE_FORMS[weight.dtype], columns, columns + columns % 2)
    group = min(weight.group, columns)
    if isinstance(weight, Words4 | Tiles4):
        wide = isinstance(weight, Words4) and weight.scales.dtype == np.float32
        return Layout(layout.FOUR, columns, group, wide, zeros=True)
    wide = any(values.dtype == np.float32 for values in heads_of(weight))
    if isinstance(weight, Packed8):
        return Layout(layout.EIGHT, columns, group, wide)
    if group % WORD and group < columns:
        return None
    return Layout(layout.FOUR, columns, -(-group // WORD) * WORD, wide, weight.zeros is not None)


def _stack_bias(heights: Sequence[int], bias: Sequence[Dense | None]) -> Floats:
    """(tiles · 16,): each part's values, zeros up to its last tile's end."""
    out = np.zeros(sum(layout.tile_count(rows) for rows in heights) * LANES, np.float32)
    start = 0
    for rows, values in zip(heights, bias, strict=True):
        if values is not None:
            out[start : start + rows] = values.dequantise()
        start += layout.tile_count(rows) * LANES
    return out
