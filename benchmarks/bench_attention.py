"""Times decode and prefill attention at shapes of Qwen2.5-7B against the read ceiling and in TFLOP/s.

Run on a GPU from the repository root: python3 -m benchmarks.bench_attention OUT.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np

from benchmarks.chain import chain_us, random_bits
from llmrs_cli.kernels import attend_decode as decode
from llmrs_cli.kernels import attend_prefill as prefill
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.loader import CubinCache, default_cache
from llmrs_cli.kernels.read_all import read_all

SHAPES = ((4, 1, 2), (4, 1, 3), (8, 1, 1))


def ints(values: Any) -> Any:
    return cp.asarray(np.asarray(list(values), np.int32))


def bench_decode(
    device: CudaDevice, contexts: list[int], heads: int, kv_heads: int, d: int
) -> dict[str, Any]:
    pages = [-(-c // 64) for c in contexts]
    total = sum(pages)
    copies = max(1, min(8, 600_000_000 // (total * kv_heads * 64 * d * 4)))
    order = np.random.default_rng(0).permutation(total).astype(np.int32)
    tables = np.full((len(contexts), max(pages)), -1, np.int32)
    cut = np.cumsum([0, *pages])
    for s, count in enumerate(pages):
        tables[s, :count] = order[cut[s] : cut[s + 1]]
    kv = [
        [random_bits(total * kv_heads * 64 * d, 1.0).reshape(total, kv_heads, 64, d) for _ in range(2)]
        for _ in range(copies)
    ]
    q = random_bits(len(contexts) * heads * d, 1.0).reshape(-1, heads, d)
    out = cp.zeros((len(contexts), heads * d), cp.uint16)
    blocks = decode.grid_blocks(device.multiprocessors, d)
    slots = decode.partial_slots(blocks, len(pages), kv_heads)
    partials = cp.zeros((slots, heads // kv_heads * (d + 4)), cp.float32)
    chunk = decode.chunk_pages(total, max(pages), blocks // kv_heads)
    arrivals = cp.zeros(len(contexts) * kv_heads, cp.int32)
    fixed = [
        ints(tables),
        ints(range(len(contexts))),
        ints(contexts),
        ints(np.arange(len(contexts) + 1)),
        ints([*cut, chunk]),
    ]
    us = chain_us(
        [
            lambda k=k, v=v: decode.attend_decode(
                device, True, q, k, v, *fixed, out, partials, arrivals, blocks=blocks, scale=d**-0.5
            )
            for k, v in kv
        ],
        total=16 if total > 2000 else 56,
    )
    size = sum(contexts) * kv_heads * d * 4
    sink = cp.zeros(2 * device.multiprocessors, cp.uint32)
    whole = [pair[i].reshape(-1, d) for pair in kv for i in range(2)]
    read = 2 * chain_us([lambda w=w: read_all(device, w, sink) for w in whole], total=32)
    return {
        "kind": "decode", "batch": len(contexts), "context": contexts[0], "heads": heads, "kv_heads": kv_heads,
        "head_dim": d, "us": us, "tb_s": size / us / 1e6, "read_us": read, "share": read / us,
    }  # fmt: skip


def bench_prefill(
    device: CudaDevice, length: int, heads: int, kv_heads: int, d: int, shape: prefill.PrefillShape
) -> dict[str, Any]:
    pages = -(-length // 64)
    keys, values = (
        random_bits(pages * kv_heads * 64 * d, 1.0).reshape(pages, kv_heads, 64, d) for _ in range(2)
    )
    q = random_bits(length * heads * d, 1.0).reshape(length, heads, d)
    out = cp.zeros((length, heads * d), cp.uint16)
    tiles = -(-length // prefill.TILE)
    fixed = [ints([list(range(pages))]), ints([0]), ints([length]), ints([0, length]), ints([0, tiles])]

    def launch() -> None:
        prefill.attend_prefill(
            device, True, q, keys, values, *fixed, out, tiles=tiles, scale=d**-0.5, shape=shape
        )

    us = chain_us([launch], total=4)
    flops = 4 * length * length / 2 * d * heads
    return {
        "kind": "prefill", "length": length, "heads": heads, "head_dim": d, "shape": str(shape), "us": us,
        "tflops": flops / us / 1e6,
    }  # fmt: skip


def main() -> None:
    device = CudaDevice(0, CubinCache(default_cache()))
    records = []
    for contexts in ([4096] * 64, [384] * 64, [384] * 256, [1024] * 16, [300], [4096], [32768]):
        records.append(bench_decode(device, contexts, 28, 4, 128))
        print(records[-1], flush=True)
    for heads, kv_heads, d in ((14, 2, 64), (16, 2, 128)):
        for contexts in ([384] * 64, [384]):
            records.append(bench_decode(device, contexts, heads, kv_heads, d))
            print(records[-1], flush=True)
    for sizes in SHAPES:
        for length in (2048, 8192):
            records.append(bench_prefill(device, length, 28, 4, 128, prefill.PrefillShape(*sizes)))
            print(records[-1], flush=True)
    for sizes in ((4, 1, 2), (4, 2, 2), (4, 1, 3), (8, 1, 1)):
        records.append(bench_prefill(device, 8192, 14, 2, 64, prefill.PrefillShape(*sizes)))
        print(records[-1], flush=True)
    Path(sys.argv[1]).write_text(json.dumps({"device": device.name, "records": records}, indent=1))


if __name__ == "__main__":
    main()
