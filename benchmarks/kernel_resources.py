"""Writes benchmarks/kernel-resources.txt: registers of every kernel on every architecture. Needs no GPU.

Run from the repository root: python3 -m benchmarks.kernel_resources

A line begins with a hash of the unit's source, its headers and the compiler's options: `recorded` knows by it what
the report still says of the sources as they are. Units that are unchanged are not compiled again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.qwen_shapes import MODELS, linears
from llmrs_cli.engine.backends.cuda_staging import large_sizes
from llmrs_cli.kernels.catalog import (
    HOPPER,
    all_units,
    packed_many_units,
    packed_units,
    packed_wide_units,
    wide_units,
)
from llmrs_cli.kernels.loader import ARCHITECTURES, Unit, compile_unit, nvrtc_version, unit_key
from llmrs_cli.kernels.marlin_layout import GROUPS, Layout
from llmrs_cli.kernels.resources import parse

REPORT = Path(__file__).with_name("kernel-resources.txt")
H200 = 132
"""Multiprocessors of the GPU whose plans for Qwen2.5 are compiled."""
KEY_DIGITS = 12
Job = tuple[str, Unit]
"""Architecture and unit."""


def packed_jobs() -> list[Job]:
    """All that 4-bit weights may need: architectures, 16-bit types, sizes of groups; Qwen2.5's products on an H200."""
    jobs: list[Job] = []
    for group in GROUPS:
        shapes = [(Layout(n, k, group), then) for name in MODELS for n, k, then in linears(name)]
        for bf16 in (True, False):
            jobs += [(arch, unit) for arch in ARCHITECTURES for unit in packed_units(bf16, group, arch)]
            products = packed_wide_units(bf16, shapes, HOPPER, H200)
            products += packed_many_units(bf16, shapes, large_sizes(2048), HOPPER, H200)
            jobs += [(HOPPER, unit) for unit in products]
    return list(dict.fromkeys(jobs))


def all_jobs() -> list[Job]:
    """Those, and all for 16-bit weights."""
    jobs = [(arch, unit) for arch in ARCHITECTURES for unit in all_units(arch)]
    products = [linear for name in MODELS for linear in linears(name)]
    jobs += [(HOPPER, unit) for bf16 in (True, False) for unit in wide_units(bf16, products, HOPPER, H200)]
    return list(dict.fromkeys(jobs + packed_jobs()))


def key(job: Job) -> str:
    """Changes with the source, its headers and the options, not with the compiler."""
    arch, unit = job
    return unit_key(unit, arch, "")[:KEY_DIGITS]


def recorded(report: Path = REPORT) -> dict[str, list[str]]:
    """Lines of the report by key; none if another version of the compiler wrote it, or nobody did."""
    head, *lines = report.read_text().splitlines() if report.exists() else [""]
    found: dict[str, list[str]] = {}
    if head == _head():
        for line in lines:
            found.setdefault(line.split(" ", 1)[0], []).append(line)
    return found


def compiled(job: Job) -> list[str]:
    """The report's lines of one unit, one for each of its kernels."""
    arch, unit = job
    return [
        f"{key(job)} {arch} {unit}: {kernel.name} {kernel.registers} registers, {kernel.local_bytes} bytes local"
        for kernel in parse(compile_unit(unit, arch).log)
    ]


def spilling(lines: Iterable[str]) -> list[str]:
    """Those of the report's lines whose kernels take local memory."""
    return [line for line in lines if not line.endswith(", 0 bytes local")]


def lines_of(jobs: Iterable[Job], known: dict[str, list[str]]) -> list[str]:
    """Lines of all units: from `known`, or the compiler."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda job: known.get(key(job)) or compiled(job), jobs)
        return [line for lines in found for line in lines]


def _head() -> str:
    return f"# by NVRTC {nvrtc_version()}"


def main() -> None:
    lines = lines_of(all_jobs(), recorded())
    REPORT.write_text("\n".join([_head(), *lines]) + "\n")


if __name__ == "__main__":
    main()
