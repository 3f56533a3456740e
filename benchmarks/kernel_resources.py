"""Writes benchmarks/kernel-resources.txt: registers of every kernel on every architecture. Needs no GPU.

Run from the repository root: python3 -m benchmarks.kernel_resources
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.qwen_shapes import MODELS, linears
from llmrs_cli.kernels.catalog import HOPPER, all_units, wide_units
from llmrs_cli.kernels.loader import ARCHITECTURES, Unit, compile_unit
from llmrs_cli.kernels.resources import parse

REPORT = Path(__file__).with_name("kernel-resources.txt")
H200 = 132
"""Multiprocessors of the GPU whose plans for Qwen2.5 are compiled."""


def lines(arch: str, unit: Unit) -> list[str]:
    return [
        f"{arch} {unit}: {kernel.name} {kernel.registers} registers, {kernel.local_bytes} bytes local"
        for kernel in parse(compile_unit(unit, arch).log)
    ]


def main() -> None:
    jobs = [(arch, unit) for arch in ARCHITECTURES for unit in all_units(arch)]
    products = [linear for name in MODELS for linear in linears(name)]
    jobs += [(HOPPER, unit) for bf16 in (True, False) for unit in wide_units(bf16, products, HOPPER, H200)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda job: lines(*job), jobs)
    REPORT.write_text("\n".join(line for part in found for line in part) + "\n")


if __name__ == "__main__":
    main()
