# mypy: allow-untyped-calls, allow-untyped-decorators
"""What threads need to meet in compiled code: atomic words, a pause, calls by address, packed arguments."""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from llmrs_cli.kernels.simd.lanes import I32, I64, address, declare, intrinsic

MACHINE = platform.machine()


@intrinsic
def atomic_load(typing: Any, array: Any, index: Any) -> Any:
    """An int64 of an array, and with it all that its writer had written before."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load_atomic(address(context, builder, sig.args[0], *args), "acquire", 8)

    return types.int64(array, types.int64), code


@intrinsic
def atomic_store(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """Write an int64, after all that was written before."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = address(context, builder, sig.args[0], args[0], args[1])
        builder.store_atomic(args[2], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), code


@intrinsic
def atomic_add(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """Add to an int64; returns what it was."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = address(context, builder, sig.args[0], args[0], args[1])
        return builder.atomic_rmw("add", pointer, args[2], "acq_rel")

    return types.int64(array, types.int64, types.int64), code


@intrinsic
def pause(typing: Any) -> Any:
    """Tell the core that this is a waiting loop; nothing on machines of which we know no way to say it."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if MACHINE in ("x86_64", "AMD64"):
            builder.call(declare(builder, "llvm.x86.sse2.pause", ir.VoidType(), []), [])
        elif MACHINE in ("aarch64", "arm64"):
            hint = declare(builder, "llvm.aarch64.hint", ir.VoidType(), [I32])
            builder.call(hint, [ir.Constant(I32, 1)])
        return context.get_dummy_value()

    return types.void(), code


@intrinsic
def give_way(typing: Any) -> Any:
    """Let the system run somebody else (POSIX sched_yield)."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.call(declare(builder, "sched_yield", I32, []), [])
        return context.get_dummy_value()

    return types.void(), code


@intrinsic
def nap(typing: Any, microseconds: Any) -> Any:
    """Sleep (POSIX usleep)."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.call(declare(builder, "usleep", I32, [I32]), [builder.trunc(args[0], I32)])
        return context.get_dummy_value()

    return types.void(types.int64), code


@intrinsic
def call_at(typing: Any, function: Any, part: Any, parts: Any, arguments: Any) -> Any:
    """Call the C function at an address with three int64."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [I64] * 3).as_pointer()
        builder.call(builder.inttoptr(args[0], kind), args[1:])
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 4), code


def package(*kinds: Any) -> tuple[Any, Any]:
    """Two intrinsics for arguments of these types: `pack(tuple) → address`, `unpack(address) → tuple`.

    The address is good until the caller has passed `hold(tuple)`: Numba frees an array after its last use
    that it can see. Unpacked arrays are not counted as references, which all threads would count in the
    same word, thousands of times a job: two threads were no faster than one.
    """
    whole = types.Tuple(kinds)

    @intrinsic
    def pack(typing: Any, arguments: Any) -> Any:
        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.ptrtoint(cgutils.alloca_once_value(builder, args[0]), I64)

        return types.int64(whole), code

    @intrinsic
    def unpack(typing: Any, place: Any) -> Any:
        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], context.get_value_type(whole).as_pointer())
            value = builder.load(pointer)
            for index, kind in enumerate(kinds):
                if isinstance(kind, types.Array):
                    array = context.make_array(kind)(context, builder, builder.extract_value(value, index))
                    array.meminfo = ir.Constant(array.meminfo.type, None)
                    value = builder.insert_value(value, array._getvalue(), index)
            return value

        return whole(types.int64), code

    return pack, unpack


@intrinsic
def hold(typing: Any, arguments: Any) -> Any:
    """Nothing, but the arguments are alive until here."""
    return types.void(arguments), lambda context, builder, sig, args: context.get_dummy_value()
