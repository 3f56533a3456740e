# mypy: allow-untyped-calls, allow-untyped-decorators
"""Sixteen values at a time between arrays and registers.

Arrays are addressed by flat element index whatever their rank, byte arrays by byte; they must be
C-contiguous. No bounds are checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types

from llmrs_cli.kernels.simd.lanes import (
    F32,
    I8,
    I16,
    I32,
    LANES,
    MASK,
    VECTOR,
    WORDS,
    address,
    as_vector,
    constant,
    declare,
    intrinsic,
    lanes,
    lanes_below,
    words,
)


def _loader(element: Any, align: int, widen: Callable[[Any, Any], Any], result: Any, doc: str) -> Any:
    """An intrinsic (array, flat index) → sixteen values from there on, widened."""

    def fetch(typing: Any, array: Any, index: Any) -> Any:
        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            pointer = address(context, builder, sig.args[0], args[0], args[1])
            kind = ir.VectorType(element, LANES)
            return widen(builder, builder.load(as_vector(builder, pointer, kind), align=align))

        return result(array, types.int64), code

    fetch.__doc__ = doc
    return intrinsic(fetch)


def _widen_bf16(builder: Any, bits: Any) -> Any:
    return builder.bitcast(builder.shl(builder.zext(bits, WORDS), constant(16)), VECTOR)


def _widen_int8(builder: Any, codes: Any) -> Any:
    return builder.sitofp(builder.sext(codes, WORDS), VECTOR)


load = _loader(F32, 4, lambda b, v: v, lanes, "Sixteen float32 of a float32 array.")
load_words = _loader(I32, 1, lambda b, v: v, words, "Sixteen 32-bit words of a byte array.")
load_f32 = _loader(F32, 1, lambda b, v: v, lanes, "Sixteen float32 of a byte array.")
load_f16 = _loader(
    ir.HalfType(), 1, lambda b, v: b.fpext(v, VECTOR), lanes, "Sixteen halves of a byte array."
)
load_bf16 = _loader(I16, 1, _widen_bf16, lanes, "Sixteen bfloat16 of a byte array.")
load_int8 = _loader(I8, 1, _widen_int8, lanes, "Sixteen signed bytes of a byte array, as float32.")


@intrinsic
def store(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """Write sixteen float32 to a float32 array."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = address(context, builder, sig.args[0], args[0], args[1])
        builder.store(args[2], as_vector(builder, pointer), align=4)
        return context.get_dummy_value()

    return types.void(array, types.int64, lanes), code


def masked_store(builder: Any, value: Any, pointer: Any, mask: Any) -> None:
    """Store the lanes of `value` whose bit of `mask` is set."""
    target = as_vector(builder, pointer)
    function = declare(
        builder, "llvm.masked.store.v16f32.p0", ir.VoidType(), [VECTOR, target.type, I32, MASK]
    )
    builder.call(function, [value, target, ir.Constant(I32, 4), mask])


def masked_load(builder: Any, pointer: Any, mask: Any) -> Any:
    """Lanes outside of the mask are not read and hold zero."""
    source = as_vector(builder, pointer)
    function = declare(builder, "llvm.masked.load.v16f32.p0", VECTOR, [source.type, I32, MASK, VECTOR])
    zero = ir.Constant(VECTOR, [0.0] * LANES)
    return builder.call(function, [source, ir.Constant(I32, 4), mask, zero])


@intrinsic
def load_first(typing: Any, array: Any, index: Any, count: Any) -> Any:
    """The first `count` of sixteen float32; the other lanes are not read and hold zero."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = address(context, builder, sig.args[0], args[0], args[1])
        return masked_load(builder, pointer, lanes_below(builder, args[2]))

    return lanes(array, types.int64, types.int64), code


@intrinsic
def store_first(typing: Any, array: Any, index: Any, value: Any, count: Any) -> Any:
    """Write the first `count` of sixteen float32."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = address(context, builder, sig.args[0], args[0], args[1])
        masked_store(builder, args[2], pointer, lanes_below(builder, args[3]))
        return context.get_dummy_value()

    return types.void(array, types.int64, lanes, types.int64), code


@intrinsic
def store_one(typing: Any, array: Any, index: Any, source: Any, source_index: Any) -> Any:
    """array[index] = source[source_index], one float32, by flat indices."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        value = builder.load(address(context, builder, sig.args[2], args[2], args[3]))
        builder.store(value, address(context, builder, sig.args[0], args[0], args[1]))
        return context.get_dummy_value()

    return types.void(array, types.int64, source, types.int64), code


@intrinsic
def prefetch(typing: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of one byte of a byte array; harmless past its end."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = address(context, builder, sig.args[0], args[0], args[1])
        function = declare(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer.type, I32, I32, I32])
        builder.call(function, [pointer, *(ir.Constant(I32, value) for value in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.int64), code
