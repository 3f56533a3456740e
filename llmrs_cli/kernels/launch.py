"""Checked kernel launches: every parameter is declared, and nothing reaches the GPU unchecked.

CuPy would pass a Python float as a double, an int as 64 bits, and a view without its strides. Here a kernel
declares its parameters; a launch checks type, number of dimensions, sizes (a letter means the same number in
every parameter of one launch) and contiguity, and casts scalars. This module needs no GPU: what runs a
kernel is a `Device`, and tests bring their own.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.loader import Unit

Dims = tuple[int, int, int]
_ITEM = {"i8": "int8", "u8": "uint8", "u16": "uint16", "i32": "int32", "u32": "uint32", "i64": "int64"}
_ITEM |= {"u64": "uint64", "f32": "float32"}
_PACK = {"i32": "i", "u32": "I", "i64": "q", "u64": "Q", "f32": "f"}


@dataclass(frozen=True, slots=True)
class Buffer:
    """A pointer parameter: an array of `kind` (u16 holds 16-bit floats) whose sizes are named by `dims`.

    A dim is a letter, bound by its first use in a launch, or a number. `optional` lets None mean null.
    """

    name: str
    kind: str
    dims: tuple[str | int, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Scalar:
    """A by-value parameter: i32, u32, i64, u64 or f32."""

    name: str
    kind: str


Param = Buffer | Scalar


@dataclass(frozen=True, slots=True)
class Shape:
    """How a kernel is spread: blocks, threads of a block, bytes of dynamic shared memory."""

    grid: Dims
    block: Dims
    shared: int = 0


class Device(Protocol):
    """What runs kernels: `device.CudaDevice`, or a recorder in tests."""

    def function(self, unit: Unit, name: str) -> Any:
        """Handle of a kernel; compiles and loads its unit on first use."""

    def launch(self, function: Any, shape: Shape, slots: Sequence[bytes]) -> None:
        """Enqueue on the current stream. `slots` are the parameters' bytes, in order."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of one unit with its declared parameters."""

    unit: Unit
    name: str
    params: tuple[Param, ...]

    def launch(self, device: Device, shape: Shape, *values: Any) -> None:
        """Check `values` against the parameters and enqueue; raises EngineFault naming what is wrong."""
        if len(values) != len(self.params):
            raise EngineFault(f"Kernel {self.name} takes {len(self.params)} parameters, not {len(values)}.")
        sizes: dict[str, int] = {}
        slots = [self._slot(param, value, sizes) for param, value in zip(self.params, values, strict=True)]
        if min(shape.grid) > 0:
            device.launch(device.function(self.unit, self.name), shape, slots)

    def _slot(self, param: Param, value: Any, sizes: dict[str, int]) -> bytes:
        if isinstance(param, Scalar):
            return self._packed(param, value)
        if value is None:
            if not param.optional:
                raise EngineFault(f"Kernel {self.name}: {param.name} is missing.")
            return bytes(8)
        self._check(param, value, sizes)
        return struct.pack("Q", value.data.ptr)

    def _packed(self, param: Scalar, value: Any) -> bytes:
        try:
            return struct.pack(_PACK[param.kind], value)
        except struct.error as error:
            raise EngineFault(f"Kernel {self.name}: {param.name} does not fit {param.kind}.") from error

    def _check(self, param: Buffer, array: Any, sizes: dict[str, int]) -> None:
        def refuse(found: str) -> None:
            wanted = f"{param.kind}({', '.join(map(str, param.dims))})"
            raise EngineFault(f"Kernel {self.name}: {param.name} must be {wanted}, not {found}.")

        if array.dtype.name != _ITEM[param.kind]:
            refuse(array.dtype.name)
        if array.ndim != len(param.dims) or not self._bound(param, array.shape, sizes):
            refuse(f"shape {tuple(array.shape)}" + _known(param, sizes))
        if not array.flags.c_contiguous:
            refuse("a strided view")

    @staticmethod
    def _bound(param: Buffer, shape: Sequence[int], sizes: dict[str, int]) -> bool:
        """Whether `shape` agrees with the dims so far; binds letters that are new."""
        return all(
            size == (dim if isinstance(dim, int) else sizes.setdefault(dim, size))
            for dim, size in zip(param.dims, shape, strict=True)
        )


def _known(param: Buffer, sizes: Mapping[str, int]) -> str:
    """The sizes that earlier parameters fixed, for a message."""
    known = [f"{dim}={sizes[dim]}" for dim in param.dims if isinstance(dim, str) and dim in sizes]
    return f" with {', '.join(known)}" if known else ""


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)
