"""What the CUDA compiler says of our kernels, without a GPU; each is compiled once in a process, whoever asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from llmrs_cli.kernels.loader import Unit, compile_unit
from llmrs_cli.kernels.resources import Resources, parse


@cache
def report(unit: Unit, arch: str) -> str:
    """The log of compiler and assembler."""
    return compile_unit(unit, arch).log


def resources(unit: Unit, arch: str) -> list[Resources]:
    """What each kernel of a unit takes."""
    found = parse(report(unit, arch))
    assert found, f"the compiler reported nothing for {unit}"
    return found


def spills(units: Iterable[Unit], arch: str) -> list[str]:
    """The kernels that take local memory, as lines that name them."""

    def of_unit(unit: Unit) -> list[str]:
        kernels = (kernel for kernel in resources(unit, arch) if kernel.local_bytes)
        return [f"{unit}: {kernel.name} ({kernel.local_bytes} bytes)" for kernel in kernels]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [line for lines in pool.map(of_unit, units) for line in lines]
