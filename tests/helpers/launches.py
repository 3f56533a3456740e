"""Launches without a GPU: arrays to launch on, a device that keeps what it is asked, and what reaches the kernel."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from llmrs_cli.kernels import attend_prompt, linear_many, linear_wide, packed_many, packed_wide
from llmrs_cli.kernels.launch import Buffer, Kernel, Map, Shape
from tests.helpers.emulate import host


class Recorder:
    """A device that keeps what it is asked to run."""

    def __init__(self) -> None:
        self.shapes: list[tuple[str, Shape]] = []
        self.passed: list[dict[str, Any]] = []
        """The arguments of each launch."""

    def launch(self, kernel: Kernel, shape: Shape, slots: bytes) -> None:
        self.shapes.append((kernel.name, shape))
        self.passed.append(arguments(kernel, slots))


def bits(*shape: int) -> Any:
    return host(np.zeros(shape, np.uint16))


def ints(*shape: int) -> Any:
    return host(np.zeros(shape, np.int32))


def floats(*shape: int) -> Any:
    return host(np.zeros(shape, np.float32))


def tensor_map(matrix: Any, rows: int) -> bytes:
    """Stands for a map of the copy engine: address, rows and columns of the matrix, rows of a box."""
    return struct.pack("<4Q96x", matrix.data.ptr, *matrix.shape, rows)


def written_map(matrix: Any, rows: int, columns: int) -> bytes:
    """Stands for a map that is written: as `tensor_map`, then bytes of a value, columns of a box."""
    return struct.pack("<6Q80x", matrix.data.ptr, *matrix.shape, rows, matrix.dtype.itemsize, columns)


@contextmanager
def plain_maps() -> Iterator[None]:
    """The driver makes tensor maps; without one, they are what `tensor_map` says."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (attend_prompt, linear_many, linear_wide, packed_many, packed_wide):
            patch.setattr(module, "tensor_map", tensor_map)
        for module in (linear_many, packed_many):
            patch.setattr(module, "written_map", written_map)
        yield


def arguments(kernel: Kernel, slots: bytes) -> dict[str, Any]:
    """What a launch passes by name: the address of a buffer (0: null), a number, or what a plain map says."""
    kinds = {"i32": "<i", "u32": "<I", "i64": "<q", "u64": "<Q", "f32": "<f"}
    found: dict[str, Any] = {}
    for param, at in zip(kernel.params, kernel.offsets, strict=True):
        if isinstance(param, Map):
            found[param.name] = struct.unpack_from("<4Q", slots, at)
        else:
            kind = "<Q" if isinstance(param, Buffer) else kinds[param.kind]
            (found[param.name],) = struct.unpack_from(kind, slots, at)
    return found
