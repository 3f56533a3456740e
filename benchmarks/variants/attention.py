"""Decode attention behind its projection: rotation in a kernel of its own or inside, blocks, and pages of a part."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from benchmarks.chain import chain_us
from benchmarks.variants.steps import DecodeCase, decode_case
from benchmarks.variants.table import Table
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.loader import CubinCache, default_cache

CASES = (
    ([300], 28, 4, 128), ([4096], 28, 4, 128), ([32768], 28, 4, 128), ([384] * 64, 28, 4, 128),
    ([384] * 256, 28, 4, 128), ([4096] * 64, 28, 4, 128), ([384], 14, 2, 64), ([384] * 64, 14, 2, 64),
)  # fmt: skip
KV_BYTES = 1_500_000_000


def time_forms(table: Table, name: str, case: DecodeCase, note: str, form: str = "") -> None:
    few = case.blocks // 2
    forms = {
        "rotation apart": case.two_kernels,
        "rotation inside": case.one_kernel,
        "rotation inside, half the blocks": partial(case.one_kernel, blocks=few),
    }
    for variant, launch in forms.items():
        if form in variant:
            us = chain_us([partial(launch, layer) for layer in range(len(case.kv))])
            table.add(name, f"{variant}{note}", us)


def main() -> None:
    table = Table(Path(sys.argv[1]))
    device = CudaDevice(0, CubinCache(default_cache()))
    for contexts, heads, kv_heads, d in CASES:
        copies = max(1, min(28, KV_BYTES // (sum(contexts) * kv_heads * d * 4)))
        name = f"{len(contexts)} x {contexts[0]}, head {d}"
        time_forms(table, name, decode_case(device, contexts, heads, kv_heads, d, copies), "")
        if len(contexts) == 1 and contexts[0] < 10_000:
            for chunk in (3, 5, 8, 16):
                case = decode_case(device, contexts, heads, kv_heads, d, copies, chunk)
                time_forms(table, name, case, f", {chunk} pages a part", "inside, half")


if __name__ == "__main__":
    main()
