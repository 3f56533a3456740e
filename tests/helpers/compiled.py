"""What the CUDA compiler says of our kernels, without a GPU; each is compiled once in a process, whoever asks for it.

What a kernel takes is not asked again where the report of resources has it, for the same source, options and compiler.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from benchmarks import kernel_resources
from llmrs_cli.kernels.loader import Unit, compile_unit
from llmrs_cli.kernels.resources import Resources, parse

_LINE = re.compile(r": (\w+) (\d+) registers, (\d+) bytes local")


@cache
def report(unit: Unit, arch: str) -> str:
    """The log of compiler and assembler."""
    return compile_unit(unit, arch).log


def resources(unit: Unit, arch: str) -> list[Resources]:
    """What each kernel of a unit takes."""
    lines = _recorded().get(kernel_resources.key((arch, unit)))
    found = parse(report(unit, arch)) if lines is None else [_taken(line) for line in lines]
    assert found, f"the compiler reported nothing for {unit}"
    return found


@cache
def _recorded() -> dict[str, list[str]]:
    return kernel_resources.recorded()


def _taken(line: str) -> Resources:
    """A line of the report."""
    found = _LINE.search(line)
    assert found, line
    return Resources(found[1], int(found[2]), int(found[3]))


def spills(units: Iterable[Unit], arch: str) -> list[str]:
    """The kernels that take local memory, as lines that name them."""

    def of_unit(unit: Unit) -> list[str]:
        kernels = (kernel for kernel in resources(unit, arch) if kernel.local_bytes)
        return [f"{unit}: {kernel.name} ({kernel.local_bytes} bytes)" for kernel in kernels]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [line for lines in pool.map(of_unit, units) for line in lines]
