# mypy: allow-untyped-calls, allow-untyped-decorators, allow-subclassing-any
"""Explicit SIMD for Numba: sixteen float32 at a time, and how to combine them.

Numba leaves vectorising to LLVM's guesses. The loops of the CPU backend rather say what they mean: a
`Lanes` value is sixteen float32 (one AVX-512 register, two of AVX2, four of NEON: LLVM splits it). The
arithmetic is float32 in the order written, each operation rounded, and only `fused` may fuse a product
into a sum; nothing is reassociated, so NaN and infinity behave and results repeat bit for bit.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending
from numba.core import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, models, register_model

LANES = 16
"""Values in one vector."""

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F32 = ir.FloatType()
VECTOR = ir.VectorType(F32, LANES)
WORDS = ir.VectorType(I32, LANES)
MASK = ir.VectorType(I1, LANES)
intrinsic: Any = extending.intrinsic
FUSE = ("contract",)
"""LLVM's leave to fuse a product into a sum."""


class LanesType(types.Type):
    """Sixteen float32."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


class WordsType(types.Type):
    """Sixteen 32-bit words."""

    def __init__(self) -> None:
        super().__init__(name="Words")


lanes = LanesType()
words = WordsType()


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, VECTOR)


@register_model(WordsType)
class _WordsModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, WORDS)


# -- pieces of LLVM code, for this file and its neighbours -------------------------------------------------------


def spread_value(builder: Any, scalar: Any) -> Any:
    """One scalar in every lane."""
    kind = ir.VectorType(scalar.type, LANES)
    nothing = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(nothing, scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(WORDS, [0] * LANES))


def constant(value: int) -> Any:
    """One 32-bit word in every lane."""
    return ir.Constant(WORDS, [value] * LANES)


def address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    """Pointer to the element of a contiguous array with this flat index."""
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [index])


def as_vector(builder: Any, pointer: Any, kind: Any = VECTOR) -> Any:
    """`pointer` as one to a vector of `kind`."""
    return builder.bitcast(pointer, kind.as_pointer())


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a · b + c, fused where the machine can."""
    return builder.fadd(builder.fmul(a, b, flags=FUSE), c, flags=FUSE)


def lanes_below(builder: Any, count: Any) -> Any:
    """Mask of the lanes whose number is under `count` (int64, may be negative)."""
    wide = ir.VectorType(I64, LANES)
    return builder.icmp_signed("<", ir.Constant(wide, list(range(LANES))), spread_value(builder, count))


def declare(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    """An LLVM intrinsic function, declared once a module."""
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(result, arguments), name)


@intrinsic
def splat(typing: Any, value: Any) -> Any:
    """One float32 in all lanes."""
    return lanes(types.float32), lambda context, builder, sig, args: spread_value(builder, args[0])


@intrinsic(prefer_literal=True)
def nibble(typing: Any, value: Any, position: Any) -> Any:
    """1 + q/16 for the 4-bit code q at `position` (a literal, 0 is lowest) of each word.

    The code is moved to the top of a float's mantissa: a shift and one and-or, no conversion.
    """
    left = 19 - 4 * position.literal_value

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        move = builder.shl if left >= 0 else builder.lshr
        mantissa = builder.and_(move(args[0], constant(abs(left))), constant(0xF << 19))
        return builder.bitcast(builder.or_(mantissa, constant(0x3F800000)), VECTOR)

    return lanes(words, position), code


# -- arithmetic -------------------------------------------------------------------------------------------


def define_operator(op: Any, vector: type, kind: Any, emit: Callable[[Any, Any, Any], Any]) -> None:
    """Give a Python operator a meaning on two vectors of type `vector`, whose one instance is `kind`."""

    class Rule(AbstractTemplate):
        key = op

        def generic(self, args: Any, kws: Any) -> Any:
            return signature(kind, kind, kind) if args == (kind, kind) else None

    infer_global(op)(Rule)
    lower_builtin(op, vector, vector)(lambda context, builder, sig, args: emit(builder, *args))


define_operator(operator.add, LanesType, lanes, lambda b, x, y: b.fadd(x, y))
define_operator(operator.sub, LanesType, lanes, lambda b, x, y: b.fsub(x, y))
define_operator(operator.mul, LanesType, lanes, lambda b, x, y: b.fmul(x, y))
define_operator(operator.truediv, LanesType, lanes, lambda b, x, y: b.fdiv(x, y))


@intrinsic
def fused(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """a · b + c, rounded once where the machine can."""
    return lanes(lanes, lanes, lanes), lambda context, builder, sig, args: fma(builder, *args)


@intrinsic
def maximum(typing: Any, a: Any, b: Any) -> Any:
    """Lane by lane the larger one; b where a is NaN."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return lanes(lanes, lanes), code


@intrinsic
def between(typing: Any, value: Any, first: Any, last: Any, other: Any) -> Any:
    """`value` in the lanes numbered first … last - 1, `other` elsewhere."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        inside = builder.and_(lanes_below(builder, args[2]), builder.not_(lanes_below(builder, args[1])))
        return builder.select(inside, args[0], args[3])

    return lanes(lanes, types.int64, types.int64, lanes), code


def _reduction(emit: Callable[[Any, Any, Any], Any], doc: str) -> Any:
    """An intrinsic that folds the upper half of the lanes onto the lower one until one is left."""

    def fold(typing: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            current = args[0]
            for half in (8, 4, 2, 1):
                order = [(lane + half) % LANES for lane in range(LANES)]
                moved = builder.shuffle_vector(current, current, ir.Constant(WORDS, order))
                current = emit(builder, current, moved)
            return builder.extract_element(current, ir.Constant(I32, 0))

        return types.float32(lanes), code

    fold.__doc__ = doc
    return intrinsic(fold)


sum_lanes = _reduction(lambda b, x, y: b.fadd(x, y), "Sum of the lanes, halves folded onto halves.")
max_lanes = _reduction(
    lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y), "The largest lane, NaN disregarded at will."
)


@intrinsic
def power_of_two(typing: Any, value: Any) -> Any:
    """2^n for lanes that hold n + 1.5 · 2²³, n from -126 to 127: the sum's low bits are n."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = builder.bitcast(args[0], WORDS)
        return builder.bitcast(builder.shl(builder.add(bits, constant(127)), constant(23)), VECTOR)

    return lanes(lanes), code
