# mypy: allow-untyped-calls, allow-untyped-decorators, allow-subclassing-any
"""Tiles: a fixed number of vectors that stay in registers, one per row of activations.

In every loop of the CPU backend sixteen lanes are sixteen outputs (or keys, or value columns) and the
rows of a tile are tokens (or query heads). One step of a product then reads one vector of weights and
one broadcast value a row, and no sum ever crosses lanes. A tile's number of rows is part of its type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import models, register_model

from llmrs_cli.kernels.simd import lanes as simd
from llmrs_cli.kernels.simd.lanes import I64, VECTOR, address, intrinsic, lanes
from llmrs_cli.kernels.simd.memory import masked_load, masked_store


class TileType(types.Type):
    """`rows` vectors of sixteen float32."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        super().__init__(name=f"Tile({rows})")


@register_model(TileType)
class _TileModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: TileType) -> None:
        super().__init__(manager, kind, ir.ArrayType(VECTOR, kind.rows))


def _vectors(builder: Any, tile: Any) -> list[Any]:
    return [builder.extract_value(tile, row) for row in range(tile.type.count)]


def _tile(builder: Any, vectors: list[Any]) -> Any:
    tile = ir.Constant(ir.ArrayType(VECTOR, len(vectors)), ir.Undefined)
    for row, vector in enumerate(vectors):
        tile = builder.insert_value(tile, vector, row)
    return tile


def _row_pointer(builder: Any, base: Any, stride: Any, row: int) -> Any:
    return builder.gep(base, [builder.mul(stride, ir.Constant(I64, row))])


@intrinsic(prefer_literal=True)
def spread(typing: Any, value: Any, rows: Any) -> Any:
    """A tile of `rows` (a literal) copies of one vector."""
    count = rows.literal_value

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _tile(builder, [args[0]] * count)

    return TileType(count)(lanes, rows), code


@intrinsic
def fma_rows(typing: Any, tile: Any, weight: Any, x: Any, base: Any, stride: Any) -> Any:
    """tile[r] + weight · x[base + r·stride] for every row r: one step of an outer product."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        current, vector, array, start, step = args
        first = address(context, builder, sig.args[2], array, start)
        out = []
        for row, total in enumerate(_vectors(builder, current)):
            scalar = builder.load(_row_pointer(builder, first, step, row))
            out.append(simd.fma(builder, vector, simd.spread_value(builder, scalar), total))
        return _tile(builder, out)

    return tile(tile, lanes, x, types.int64, types.int64), code


@intrinsic
def fma_tile(typing: Any, tile: Any, weight: Any, other: Any) -> Any:
    """tile[r] + weight · other[r] for every row r."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pairs = zip(_vectors(builder, args[0]), _vectors(builder, args[2]), strict=True)
        return _tile(builder, [simd.fma(builder, args[1], theirs, ours) for ours, theirs in pairs])

    return tile(tile, lanes, tile), code


@intrinsic
def add_tile(typing: Any, tile: Any, other: Any) -> Any:
    """tile[r] + other[r] for every row r."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pairs = zip(_vectors(builder, args[0]), _vectors(builder, args[1]), strict=True)
        return _tile(builder, [builder.fadd(ours, theirs) for ours, theirs in pairs])

    return tile(tile, tile), code


def _each_row(
    context: Any, builder: Any, sig: Any, args: Any, visit: Callable[[Any, Any, Any], Any]
) -> list[Any]:
    """visit(row's vector, pointer, mask) for (tile, array, base, stride, used rows, columns)."""
    tile, array, base, stride, used, columns = args
    first = address(context, builder, sig.args[1], array, base)
    inside = simd.lanes_below(builder, columns)
    out = []
    for row, vector in enumerate(_vectors(builder, tile)):
        live = simd.spread_value(builder, builder.icmp_signed(">", used, ir.Constant(I64, row)))
        pointer = _row_pointer(builder, first, stride, row)
        out.append(visit(vector, pointer, builder.and_(inside, live)))
    return out


_PLACE = (types.int64,) * 4


@intrinsic
def store_rows(typing: Any, tile: Any, array: Any, base: Any, stride: Any, used: Any, columns: Any) -> Any:
    """array[base + r·stride …] = the first `columns` lanes of tile[r], for the first `used` rows."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def visit(vector: Any, pointer: Any, mask: Any) -> None:
            masked_store(builder, vector, pointer, mask)

        _each_row(context, builder, sig, args, visit)
        return context.get_dummy_value()

    return types.void(tile, array, *_PLACE), code


@intrinsic
def add_rows(typing: Any, tile: Any, array: Any, base: Any, stride: Any, used: Any, columns: Any) -> Any:
    """array[base + r·stride …] + tile[r], over the same part of the array as `store_rows` writes."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def visit(vector: Any, pointer: Any, mask: Any) -> Any:
            return builder.fadd(masked_load(builder, pointer, mask), vector)

        return _tile(builder, _each_row(context, builder, sig, args, visit))

    return tile(tile, array, *_PLACE), code


@intrinsic(prefer_literal=True)
def load_rows(typing: Any, rows: Any, array: Any, base: Any, stride: Any) -> Any:
    """A tile of `rows` (a literal) whole vectors, array[base + r·stride …]."""
    count = rows.literal_value

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        first = address(context, builder, sig.args[1], args[1], args[2])
        pointers = (_row_pointer(builder, first, args[3], row) for row in range(count))
        return _tile(builder, [builder.load(simd.as_vector(builder, p), align=4) for p in pointers])

    return TileType(count)(rows, array, types.int64, types.int64), code


@intrinsic
def fma_pairs(typing: Any, tile: Any, left: Any, right: Any, x: Any, base: Any, stride: Any) -> Any:
    """One step of an outer product with two vectors of weights: rows come in pairs, one for each.

    tile[2·r] + left · x[base + r·stride] and tile[2·r + 1] + right · x[base + r·stride].
    """

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        current, a, b, array, start, step = args
        first = address(context, builder, sig.args[3], array, start)
        vectors = _vectors(builder, current)
        out = []
        for row in range(len(vectors) // 2):
            value = simd.spread_value(builder, builder.load(_row_pointer(builder, first, step, row)))
            out.append(simd.fma(builder, a, value, vectors[2 * row]))
            out.append(simd.fma(builder, b, value, vectors[2 * row + 1]))
        return _tile(builder, out)

    return tile(tile, lanes, lanes, x, types.int64, types.int64), code


@intrinsic
def paired(typing: Any, left: Any, right: Any) -> Any:
    """The rows of two tiles in turns, as `fma_pairs` takes them."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pairs = zip(_vectors(builder, args[0]), _vectors(builder, args[1]), strict=True)
        return _tile(builder, [vector for pair in pairs for vector in pair])

    return TileType(2 * left.rows)(left, left), code


@intrinsic(prefer_literal=True)
def every_other(typing: Any, tile: Any, first: Any) -> Any:
    """Rows first, first + 2, … of a tile; `first` is a literal, 0 or 1."""
    start = first.literal_value

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _tile(builder, _vectors(builder, args[0])[start::2])

    return TileType(tile.rows // 2)(tile, first), code
