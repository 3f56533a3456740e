# mypy: allow-untyped-calls, allow-untyped-decorators
"""Sixteen 32-bit words at a time: integer arithmetic, and the ways between words and float32 lanes.

Sums and products wrap. Shifts and the factor of a product are literals.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types

from llmrs_cli.kernels.simd import lanes as simd
from llmrs_cli.kernels.simd.lanes import (
    I32,
    I64,
    LANES,
    VECTOR,
    WORDS,
    WordsType,
    constant,
    intrinsic,
    lanes,
    words,
)

_WIDE = ir.VectorType(I64, LANES)

simd.define_operator(operator.add, WordsType, words, lambda b, x, y: b.add(x, y))
simd.define_operator(operator.sub, WordsType, words, lambda b, x, y: b.sub(x, y))
simd.define_operator(operator.xor, WordsType, words, lambda b, x, y: b.xor(x, y))
simd.define_operator(operator.and_, WordsType, words, lambda b, x, y: b.and_(x, y))


def _conversion(source: Any, result: Any, emit: Callable[[Any, Any], Any], doc: str) -> Any:
    """An intrinsic of one vector."""

    def convert(typing: Any, value: Any) -> Any:
        return result(source), lambda context, builder, sig, args: emit(builder, args[0])

    convert.__doc__ = doc
    return intrinsic(convert)


bits = _conversion(lanes, words, lambda b, v: b.bitcast(v, WORDS), "The bit patterns of float32.")
from_bits = _conversion(words, lanes, lambda b, v: b.bitcast(v, VECTOR), "float32 of these bit patterns.")
from_unsigned = _conversion(words, lanes, lambda b, v: b.uitofp(v, VECTOR), "Unsigned integers, rounded.")
from_signed = _conversion(words, lanes, lambda b, v: b.sitofp(v, VECTOR), "Signed integers, rounded.")


@intrinsic
def splat_word(typing: Any, value: Any) -> Any:
    """The low 32 bits of an integer in all lanes."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return simd.spread_value(builder, builder.trunc(args[0], I32))

    return words(types.int64), code


@intrinsic
def count_up(typing: Any, first: Any) -> Any:
    """first, first + 1, … first + 15."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        start = simd.spread_value(builder, builder.trunc(args[0], I32))
        return builder.add(start, ir.Constant(WORDS, list(range(LANES))))

    return words(types.int64), code


@intrinsic
def load_ints(typing: Any, array: Any, index: Any) -> Any:
    """Sixteen words of an int32 array."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = simd.address(context, builder, sig.args[0], args[0], args[1])
        return builder.load(simd.as_vector(builder, pointer, WORDS), align=4)

    return words(array, types.int64), code


def _shift(name: str, doc: str) -> Any:
    def move(typing: Any, value: Any, distance: Any) -> Any:
        count = distance.literal_value

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return getattr(builder, name)(args[0], constant(count))

        return words(words, distance), code

    move.__doc__ = doc
    return intrinsic(prefer_literal=True)(move)


shift_left = _shift("shl", "Each word shifted left by a literal.")
shift_right = _shift("lshr", "Each word shifted right by a literal, zeros from the left.")
shift_signed = _shift("ashr", "Each word shifted right by a literal, its sign from the left.")


def _product(high: bool, doc: str) -> Any:
    def multiply(typing: Any, value: Any, factor: Any) -> Any:
        by = ir.Constant(_WIDE, [factor.literal_value] * LANES)

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            product = builder.mul(builder.zext(args[0], _WIDE), by)
            if high:
                product = builder.lshr(product, ir.Constant(_WIDE, [32] * LANES))
            return builder.trunc(product, WORDS)

        return words(words, factor), code

    multiply.__doc__ = doc
    return intrinsic(prefer_literal=True)(multiply)


product_high = _product(True, "The upper 32 bits of an unsigned product with a literal.")
product_low = _product(False, "The lower 32 bits of an unsigned product with a literal.")


@intrinsic
def where_below(typing: Any, a: Any, b: Any, then: Any, otherwise: Any) -> Any:
    """Lane by lane: `then` where a < b, else (also where either is NaN) `otherwise`."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", args[0], args[1]), args[2], args[3])

    return lanes(lanes, lanes, lanes, lanes), code


@intrinsic
def where_equal(typing: Any, a: Any, b: Any, then: Any, otherwise: Any) -> Any:
    """Lane by lane: word `then` where words a and b agree, else `otherwise`."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(builder.icmp_unsigned("==", args[0], args[1]), args[2], args[3])

    return words(words, words, words, words), code


@intrinsic
def all_below(typing: Any, a: Any, b: Any) -> Any:
    """Whether a < b in every lane; false if one is NaN."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        mask = builder.fcmp_ordered("<", args[0], args[1])
        every = builder.bitcast(mask, ir.IntType(LANES))
        return builder.icmp_unsigned("==", every, ir.Constant(every.type, -1))

    return types.boolean(lanes, lanes), code
