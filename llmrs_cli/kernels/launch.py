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
from typing import Any, NamedTuple, Protocol

import numpy as np

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.loader import Unit

Dims = tuple[int, int, int]
_DTYPE = {kind: np.dtype(kind[0] + str(int(kind[1:]) // 8)) for kind in ("u16", "i32", "u32", "f32")}
_CODE = {"i32": "i4x", "u32": "I4x", "i64": "q", "u64": "Q", "f32": "f4x"}
"""Each takes 8 bytes."""


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


@dataclass(frozen=True, slots=True)
class Map:
    """A by-value parameter of 128 bytes: where the copy engine finds an array (`tensor_map.py`)."""

    name: str


Param = Buffer | Scalar | Map
MOST_SHAPES = 4096
"""Of one kernel's launches that are remembered."""
_MAP_BYTES = 128


def _code(param: Param) -> str:
    """How `struct` packs a parameter."""
    if isinstance(param, Map):
        return f"{_MAP_BYTES}s"
    return _CODE["u64" if isinstance(param, Buffer) else param.kind]


class Shape(NamedTuple):
    """How a kernel is spread: blocks, threads of a block, bytes of dynamic shared memory. A tuple, since it is made and
    looked up for every launch."""

    grid: Dims
    block: Dims
    shared: int = 0
    at_once: int = 0
    """Blocks of this launch that a multiprocessor may hold; 0: as many as fit.

    A grid that fills the GPU once needs this. Its blocks start while those of other kernels leave, and would
    crowd on the multiprocessors that empty first while others idle; the next grid then finds room on those only.
    """


class Device(Protocol):
    """What runs kernels: `device.CudaDevice`, or a recorder in tests."""

    def launch(self, kernel: Kernel, shape: Shape, slots: bytes) -> None:
        """Enqueue on the current stream. `slots` holds the parameters in order, at `kernel.offsets`."""


class Kernel:
    """A kernel of one unit with its declared parameters. Made once and kept: launches find it by identity."""

    def __init__(self, unit: Unit, name: str, params: tuple[Param, ...]) -> None:
        self.unit = unit
        self.name = name
        self.params = params
        self._packer = struct.Struct("<" + "".join(map(_code, params)))
        self._buffers = [
            (at, param, _DTYPE[param.kind]) for at, param in enumerate(params) if isinstance(param, Buffer)
        ]
        self._agreed: set[tuple[Any, ...]] = set()
        """Shapes of all buffers that were found to agree."""
        sizes = [struct.calcsize("<" + _code(param)) for param in params]
        self.offsets = tuple(sum(sizes[:i]) for i in range(len(sizes)))
        """Where each parameter stands in `slots`, in bytes."""
        self.size = self._packer.size

    def launch(self, device: Device, shape: Shape, *values: Any) -> None:
        """Check `values` against the parameters and enqueue; raises EngineFault naming what is wrong."""
        if len(values) != len(self.params):
            raise EngineFault(f"Kernel {self.name} takes {len(self.params)} parameters, not {len(values)}.")
        plain, shapes = list(values), []
        for at, param, dtype in self._buffers:
            array = values[at]
            if array is None:
                plain[at] = 0
                shapes.append(None if param.optional else ())
            else:
                whole = array.dtype == dtype and array.flags.c_contiguous
                plain[at] = array.data.ptr
                shapes.append(array.shape if whole else ())
        if tuple(shapes) not in self._agreed:
            self._agree(values)
            if len(self._agreed) >= MOST_SHAPES:
                self._agreed.clear()
            self._agreed.add(tuple(shapes))
        try:
            slots = self._packer.pack(*plain)
        except struct.error as error:
            raise EngineFault(f"Kernel {self.name}: {self._unpackable(plain)}.") from error
        if min(shape.grid) > 0:
            device.launch(self, shape, slots)

    def _agree(self, values: Sequence[Any]) -> None:
        """Check every buffer; raises EngineFault naming what is wrong."""
        sizes: dict[str, int] = {}
        for at, param, _ in self._buffers:
            if values[at] is not None:
                self._check(param, values[at], sizes)
            elif not param.optional:
                raise EngineFault(f"Kernel {self.name}: {param.name} is missing.")

    def _unpackable(self, values: list[Any]) -> str:
        """Which scalar does not fit its type."""
        for param, value in zip(self.params, values, strict=True):
            try:
                struct.pack(_code(param), value)
            except struct.error:
                return f"{param.name} does not fit {getattr(param, 'kind', 'a map')}"
        raise AssertionError("every value fits by itself")

    def _check(self, param: Buffer, array: Any, sizes: dict[str, int]) -> None:
        def refuse(found: str) -> None:
            wanted = f"{param.kind}({', '.join(map(str, param.dims))})"
            raise EngineFault(f"Kernel {self.name}: {param.name} must be {wanted}, not {found}.")

        if array.dtype != _DTYPE[param.kind]:
            refuse(str(array.dtype))
        if array.ndim != len(param.dims) or not self._bound(param, array.shape, sizes):
            refuse(f"shape {tuple(array.shape)}" + _known(param, sizes))
        if not array.flags.c_contiguous:
            refuse("a strided view")

    @staticmethod
    def _bound(param: Buffer, shape: Sequence[int], sizes: dict[str, int]) -> bool:
        """Whether `shape` agrees with the dims so far; binds letters that are new."""
        for dim, size in zip(param.dims, shape, strict=True):
            if size != (dim if type(dim) is int else sizes.setdefault(dim, size)):  # type: ignore[arg-type]
                return False
        return True


def _known(param: Buffer, sizes: Mapping[str, int]) -> str:
    """The sizes that earlier parameters fixed, for a message."""
    known = [f"{dim}={sizes[dim]}" for dim in param.dims if isinstance(dim, str) and dim in sizes]
    return f" with {', '.join(known)}" if known else ""


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)
