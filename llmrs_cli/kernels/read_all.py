"""Launcher of read_all.cu: the pure-read ceiling."""

from __future__ import annotations

from typing import Any

from llmrs_cli.kernels.launch import Buffer, Device, Kernel, Scalar, Shape
from llmrs_cli.kernels.loader import Unit

UNIT = Unit("read_all")
_PARAMS = (Buffer("data", "u16", ("N", "K")), Buffer("out", "u32", ("blocks",)), Scalar("count", "i64"))


_KERNEL = Kernel(UNIT, "read_all", _PARAMS)


def read_all(device: Device, data: Any, out: Any) -> None:
    """Read a 16-bit matrix once; `out` (blocks,) uint32 sets the number of blocks."""
    shape = Shape((out.size, 1, 1), (512, 1, 1))
    _KERNEL.launch(device, shape, data, out, data.size // 8)
