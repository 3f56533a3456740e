"""What a byte and a product cost in energy on an H200: the board's 700 W decide over long steps.

Run from the repository root: python3 -m benchmarks.variants.joules OUT.json; half a minute. A record's time is that of
a terabyte, or of 10¹² operations, in microseconds; its note has watts, rate and joules. Parts of the blocks tell what L2 gives
to one multiprocessor from what it gives to all. The driver's counter of energy
(pynvml, which the project does not depend on) moves some fifty times a second: each case runs from one move to another.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np
import pynvml  # type: ignore[import-not-found]
from cuda.bindings import driver

from benchmarks.chain import random_bits
from benchmarks.variants.table import Table
from llmrs_cli.kernels.loader import Unit, compile_unit

SOURCE = "../../benchmarks/variants/joules"
"""Seen from the kernels, whose headers it includes."""
WARM, SECONDS = 0.3, 0.6
READ_SHARED, MULTIPLY_SHARED = 132 << 10, 227 << 10
BOXES, STEPS = 3000, 20_000


def kernel(name: str, shared: int, **macros: int) -> tuple[Any, Any]:
    """(module, function) of joules.cu, with so much shared memory."""
    module = cp.cuda.function.Module()
    module.load(compile_unit(Unit(SOURCE, tuple(macros.items())), "sm_90a").code)
    function = module.get_function(name)
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    (status,) = driver.cuFuncSetAttribute(function.ptr, attribute, shared)
    if int(status):
        raise RuntimeError(f"No {shared} bytes of shared memory for {name} ({status.name})")
    return module, function


class Meter:
    """Energy and time of a stream of launches."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._device = pynvml.nvmlDeviceGetHandleByIndex(0)

    def joules(self) -> float:
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._device)) / 1e3

    def measure(self, launch: Callable[[], None]) -> tuple[float, float, int]:
        """(watts, launches a second, MHz) of a GPU that does nothing else."""
        stream = cp.cuda.get_current_stream()

        def batch() -> float:
            for _ in range(4):
                launch()
            stream.synchronize()
            return self.joules()

        end = time.perf_counter() + WARM
        while time.perf_counter() < end:
            batch()
        first = batch()
        while (begun := batch()) == first:
            pass
        began, done, clocks = time.perf_counter(), 0, []
        while True:
            now, done = batch(), done + 4
            clocks.append(pynvml.nvmlDeviceGetClockInfo(self._device, pynvml.NVML_CLOCK_SM))
            elapsed = time.perf_counter() - began
            if elapsed > SECONDS and now != begun:
                return (now - begun) / elapsed, done / elapsed, int(np.median(clocks))


def main() -> None:
    table, meter = Table(Path(sys.argv[1])), Meter()
    blocks = cp.cuda.Device().attributes["MultiProcessorCount"]

    def add(case: str, variant: str, launch: Callable[[], None], units: float, unit: str) -> None:
        """`units`: of a launch, in TB or 10¹² operations; 0 where nothing is done."""
        watts, rate, clock = meter.measure(launch)
        told = f"{rate * units:.2f} {unit}/s, {watts / rate / units:.3f} J each, " if units else ""
        table.add(
            case, variant, 1e6 / (rate * units) if units else 0.0, f"{told}{watts:.0f} W at {clock} MHz"
        )

    _keep, waiting = kernel("waiting", 0, ROWS=64)
    add("nothing", "a block that sleeps", lambda: waiting((1,), (32,), (np.int64(1_000_000),)), 0, "")
    array = random_bits((8 << 30) // 2)
    for case, sharers, size, part in (
        ("memory", 1, 8 << 30, 1),
        ("L2", 1, 24 << 20, 1),
        ("L2, half of the blocks", 1, 24 << 20, 2),
        ("L2, a quarter of the blocks", 1, 24 << 20, 4),
        ("L2, two blocks share", 2, 24 << 20, 1),
        ("L2, two share, half of them", 2, 24 << 20, 2),
        ("L2, four blocks share", 4, 24 << 20, 1),
    ):
        _keep, reading = kernel("reading", READ_SHARED, ROWS=64, SHARERS=sharers)
        grid = blocks // part // sharers * sharers
        add(
            case,
            "16 KiB at a time",
            lambda f=reading, g=grid, s=size: f(  # type: ignore[misc]
                (g,), (64,), (array, np.int64(s // 16384), np.int32(BOXES)), shared_mem=READ_SHARED
            ),
            grid * BOXES * 16384 / 1e12,
            "TB",
        )
    values = {"random": random_bits(1 << 17, 1.0), "zeros": cp.zeros(1 << 17, cp.uint16)}
    out = cp.zeros(1024, cp.float32)
    for name, rows in (("random", 256), ("random", 192), ("random", 128), ("zeros", 256)):
        _keep, multiplying = kernel("multiplying", MULTIPLY_SHARED, ROWS=rows, WGS=2)
        add(
            f"products, {name}",
            f"128 tokens x {rows} rows",
            lambda f=multiplying, d=values[name]: f(  # type: ignore[misc]
                (blocks,), (256,), (d, np.int32(STEPS), out), shared_mem=MULTIPLY_SHARED
            ),
            blocks * STEPS * 128 * rows * 64 * 2 / 1e12,
            "TFLOP",
        )


if __name__ == "__main__":
    main()
