# mypy: allow-untyped-calls, allow-untyped-decorators, allow-untyped-defs
"""Sharing work out to threads: one small parallel loop that calls compiled functions by address.

Numba compiles everything that a `prange` reaches several times over, which takes a minute for loops as
large as ours. So each heavy loop is a C function (`program` compiles it once) that gets its number, the
number of threads and the address of its arguments, a tuple on the stack of the caller, who waits.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import prange
from numba.core import cgutils, types
from numba.core.imputils import impl_ret_borrowed

from llmrs_cli.kernels.simd.lanes import I64, intrinsic

njit: Any = numba.njit


def package(*kinds: Any) -> tuple[Any, Any]:
    """Two intrinsics for arguments of these types: `pack(tuple) → address`, `unpack(address) → tuple`."""
    whole = types.Tuple(kinds)

    @intrinsic
    def pack(typing: Any, arguments: Any) -> Any:
        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.ptrtoint(cgutils.alloca_once_value(builder, args[0]), I64)

        return types.int64(whole), code

    @intrinsic
    def unpack(typing: Any, address: Any) -> Any:
        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            kind = context.get_value_type(whole).as_pointer()
            value = builder.load(builder.inttoptr(args[0], kind))
            return impl_ret_borrowed(context, builder, whole, value)

        return whole(types.int64), code

    return pack, unpack


@intrinsic
def call_at(typing: Any, function: Any, thread: Any, threads: Any, arguments: Any) -> Any:
    """Call the C function at an address."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [I64] * 3).as_pointer()
        builder.call(builder.inttoptr(args[0], kind), args[1:])
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 4), code


@njit(parallel=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy")
def fork(function, threads, arguments):
    """Run the C function at address `function` once for each thread; returns when all are done."""
    for thread in prange(threads):
        call_at(function, thread, threads, arguments)
