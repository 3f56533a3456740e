"""What the hardware gives at best, measured in the run that compares with it: pure reads and a large product."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from llmrs_cli.bench.clock import ChainClock, Clock, HostClock
from llmrs_cli.engine.backends.base import Backend

POOL_BYTES = 2 << 30
"""That reads on a GPU are spread over: far more than its cache."""
NOISE_PIECE = 1 << 26
PRODUCT = 8192
"""Rows and columns of the product on a GPU."""
LAUNCH_PLACES = 56
"""Stretches of the pool that one chain reads."""
HOST_PRODUCT = 1024
HOST_BYTES = 1 << 27


class Ceilings(Protocol):
    """The least seconds for so many bytes read and for so many floating-point operations."""

    clock: Clock

    def read_seconds(self, size: int) -> float:
        """Of a pure read of `size` bytes, one among many others."""

    def operations(self) -> float:
        """Floating-point operations a second of a large product of matrices."""


def ceilings(backend: Backend) -> Ceilings:
    """Of the machine that `backend` computes on."""
    return GpuCeilings(backend) if backend.name == "cuda" else HostCeilings()


class HostCeilings:
    """One thread's plain loop over memory, and NumPy's product."""

    def __init__(self) -> None:
        self.clock: Clock = HostClock()
        self._rate = 0.0
        self._operations = 0.0

    def read_seconds(self, size: int) -> float:
        if not self._rate:
            data = np.ones(HOST_BYTES // 4, np.int32)
            self._rate = data.nbytes / _best(data.max)
        return size / self._rate

    def operations(self) -> float:
        if not self._operations:
            x = np.random.default_rng(0).standard_normal((HOST_PRODUCT, HOST_PRODUCT), np.float32)
            self._operations = 2 * HOST_PRODUCT**3 / _best(lambda: x @ x)
        return self._operations


def _best(call: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


class GpuCeilings:
    """Reads of the same bytes in the same kind of chain; a product of random matrices through cuBLASLt."""

    def __init__(self, backend: Backend) -> None:
        import cupy

        from llmrs_cli.kernels.gemm import Gemm

        self.clock: Clock = ChainClock()
        known: Any = backend
        self._device, self._gemm = known.device, Gemm()
        self._pool = _noise(POOL_BYTES // 2)
        self._sinks = [cupy.zeros(n * self._device.multiprocessors, cupy.uint32) for n in (1, 2, 4)]
        self._known: dict[int, float] = {}
        self._operations = 0.0

    def read_seconds(self, size: int) -> float:
        values = min(max(size // 2 // 8 * 8, 8), int(self._pool.size))
        if values not in self._known:
            self._known[values] = min(self._read(values, sink) for sink in self._sinks)
        return self._known[values] * size / float(2 * values)

    def _read(self, values: int, sink: Any) -> float:
        from llmrs_cli.kernels.read_all import read_all

        places = max(1, min(LAUNCH_PLACES, self._pool.size // values))
        gap = (self._pool.size - values) // max(places - 1, 1) // 8 * 8
        parts = [self._pool[i * gap : i * gap + values].reshape(-1, 8) for i in range(places)]
        return self.clock.seconds([lambda p=p: read_all(self._device, p, sink) for p in parts])  # type: ignore[misc]

    def operations(self) -> float:
        import cupy

        if not self._operations:
            x, weight = self._pool[: 2 * PRODUCT**2].reshape(2, PRODUCT, PRODUCT)
            out = cupy.empty((PRODUCT, PRODUCT), cupy.uint16)
            seconds = self.clock.seconds([lambda: self._gemm(True, x, weight, out)])
            self._operations = 2 * PRODUCT**3 / seconds
        return self._operations


def _noise(size: int) -> Any:
    """(size,) bfloat16 patterns of either sign between 2⁻⁷ and 2, made on the GPU without a library for it."""
    import cupy

    out = cupy.empty(size, cupy.uint16)
    for first in range(0, size, NOISE_PIECE):
        numbers = cupy.arange(first, min(first + NOISE_PIECE, size), dtype=cupy.uint32)
        mixed = numbers * cupy.uint32(2654435761)
        mixed ^= mixed >> cupy.uint32(15)
        out[first : first + numbers.size] = (mixed & cupy.uint32(0x83FF) | cupy.uint32(0x3C00)).astype(
            cupy.uint16
        )
    return out
