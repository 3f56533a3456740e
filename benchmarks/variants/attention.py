"""Decode attention behind its projection: rotation in a kernel of its own, or clusters of blocks that rotate themselves."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from benchmarks.chain import chain_us
from benchmarks.variants.steps import decode_case
from benchmarks.variants.table import Table
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.loader import CubinCache, default_cache

CASES = (
    ([300], 28, 4, 128), ([1000], 28, 4, 128), ([4096], 28, 4, 128), ([32768], 28, 4, 128),
    ([384] * 8, 28, 4, 128), ([384] * 16, 28, 4, 128), ([384] * 64, 28, 4, 128), ([384] * 256, 28, 4, 128),
    ([4096] * 8, 28, 4, 128), ([4096] * 64, 28, 4, 128), ([384], 14, 2, 64), ([384] * 16, 14, 2, 64),
    ([384] * 64, 14, 2, 64),
)  # fmt: skip
KV_BYTES = 1_500_000_000


def main() -> None:
    table = Table(Path(sys.argv[1]))
    device = CudaDevice(0, CubinCache(default_cache()))
    for contexts, heads, kv_heads, d in CASES:
        copies = max(1, min(28, KV_BYTES // (sum(contexts) * kv_heads * d * 4)))
        case = decode_case(device, contexts, heads, kv_heads, d, copies)
        for variant, launch in (("two kernels", case.two_kernels), ("clusters", case.one_kernel)):
            us = chain_us([partial(launch, layer) for layer in range(len(case.kv))])
            table.add(f"{len(contexts)} x {contexts[0]}, head {d}", variant, us)


if __name__ == "__main__":
    main()
