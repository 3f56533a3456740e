"""Timing kernels in a captured chain: many launches back to back over weights larger than any cache.

A kernel alone shows its start and its end more than its work. Here one graph holds a chain of launches, each on
its own weights, with early start as in a real step; its time over the number of launches is the kernel's.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import cupy as cp

LAUNCHES = 56
REPLAYS = 7


def chain_us(launches: Sequence[Callable[[], None]], total: int = LAUNCHES) -> float:
    """Microseconds a launch: median over replays of a graph of `total` launches, cycling through the list."""
    cp.cuda.Device().synchronize()  # what the caller prepared on other streams
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        launches[0]()
        stream.synchronize()
        stream.begin_capture()
        for i in range(total):
            launches[i % len(launches)]()
        graph = stream.end_capture()
        graph.launch(stream)
        times = []
        for _ in range(REPLAYS):
            start, end = cp.cuda.Event(), cp.cuda.Event()
            start.record(stream)
            graph.launch(stream)
            end.record(stream)
            end.synchronize()
            times.append(cp.cuda.get_elapsed_time(start, end) * 1e3)
    return statistics.median(times) / total


def random_bits(size: int, scale: float = 0.02, bf16: bool = True) -> Any:
    """(size,) normal values as 16-bit patterns, made on the device in pieces."""
    out = cp.empty(size, cp.uint16)
    for first in range(0, size, 1 << 26):
        part = cp.random.standard_normal(min(1 << 26, size - first), dtype=cp.float32) * scale
        out[first : first + part.size] = to_bits(part, bf16)
    return out


def to_bits(values: Any, bf16: bool = True) -> Any:
    """float32 → bit patterns of the 16-bit type, to nearest even."""
    if not bf16:
        return values.astype(cp.float16).view(cp.uint16)
    bits = cp.ascontiguousarray(values, cp.float32).view(cp.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(cp.uint16)


def from_bits(bits: Any, bf16: bool = True) -> Any:
    """Bit patterns of the 16-bit type → float32."""
    return (
        (bits.astype(cp.uint32) << 16).view(cp.float32) if bf16 else bits.view(cp.float16).astype(cp.float32)
    )
