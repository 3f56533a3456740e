"""Whether what a kernel reads of the one before it stands behind the weights it has asked for; a few seconds on an H200.

Run from the repository root: python3 -m benchmarks.variants.behind OUT.json. A record's time is that in which 128 threads of
a block read 14 KiB that L2 holds, median of all blocks and rounds, while the block's weights stream from memory in one
of the ways of behind.cu; its note has the slowest twentieth.
"""

from __future__ import annotations

import sys
from pathlib import Path

import cupy as cp
import numpy as np

from benchmarks.chain import random_bits
from benchmarks.variants.joules import kernel
from benchmarks.variants.table import Table

WAYS = ("nothing", "through L1 to shared memory", "through L1 to registers", "by the copy engine")
ROUNDS, SHARED = 400, 120 << 10
ASKED_BYTES = 64 * 7 * 128 * 16


def main() -> None:
    table = Table(Path(sys.argv[1]))
    blocks = cp.cuda.Device().attributes["MultiProcessorCount"]
    clock = cp.cuda.Device().attributes["ClockRate"] / 1e3  # cycles of a microsecond at most
    weights, x = random_bits((4 << 30) // 2), random_bits(ASKED_BYTES // 2)
    took, sink = cp.zeros((blocks, ROUNDS), cp.uint32), cp.zeros(1024, cp.uint32)
    for way, name in enumerate(WAYS):
        _keep, function = kernel("behind", SHARED, source="behind", WAY=way)
        for _ in range(2):
            function(
                (blocks,),
                (256,),
                (weights, np.int64(weights.nbytes), x, np.int32(ROUNDS), took, sink),
                shared_mem=SHARED,
            )
        times = cp.asnumpy(took).astype(np.float64) / clock
        slow = np.percentile(times, 95)
        table.add(
            "14 KiB from L2, beside", name, float(np.median(times)), f"one in twenty over {slow:.2f} us"
        )


if __name__ == "__main__":
    main()
