"""Attention of a few sequences by clusters of blocks, against rotation and decode attention in two kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmrs_cli.kernels import attend_decode as decode
from llmrs_cli.kernels.attend_few import Rotation, attend_few
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.rope_store import rope_store
from tests.gpu.halves import TYPES, cp, error, halves, rounding, widened

CONTEXTS = [1, 63, 64, 65, 300, 1000, 17, 16, 129]
EPS = 1e-6
BLOCKS = 13
"""Of decode attention."""


def on_device(values: Any) -> Any:
    return cp.asarray(np.asarray(values, np.int32))


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "d"), [(28, 4, 128), (14, 2, 64), (4, 4, 96), (16, 1, 32), (6, 2, 128)]
)
@pytest.mark.parametrize(("normed", "window"), [(False, 0), (True, 0), (True, 70)])
def test_clusters_do_what_two_kernels_do(
    device: CudaDevice, bf16: bool, heads: int, kv_heads: int, d: int, normed: bool, window: int
) -> None:
    rng = np.random.default_rng(d + heads)
    count = len(CONTEXTS)
    pages = [-(-context // 64) for context in CONTEXTS]
    cut = np.cumsum([0, *pages])
    tables = np.full((count, max(pages)), -1, np.int32)
    order = rng.permutation(cut[-1])
    for row, own in enumerate(pages):
        tables[row, :own] = order[cut[row] : cut[row + 1]]
    newest = np.array(CONTEXTS) - 1
    slots = tables[np.arange(count), newest // 64] * 64 + newest % 64
    caches = [halves(rng.standard_normal((cut[-1], kv_heads, 64, d)), bf16)[0] for _ in range(2)]
    qkv, _ = halves(rng.standard_normal((count, (heads + 2 * kv_heads) * d)) * 2, bf16)
    angles = np.outer(np.arange(1001), 1e4 ** -(np.arange(d // 2) * 2 / d))
    table = cp.asarray(np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32))
    norms = [cp.asarray(rng.uniform(0.5, 2, d).astype(np.float32)) if normed else None for _ in range(2)]
    chunk = decode.chunk_pages(int(cut[-1]), max(pages), max(BLOCKS // kv_heads, 1))
    fixed = (on_device(tables), on_device(range(count)), on_device(CONTEXTS), on_device(range(count + 1)),
             on_device([*cut, chunk]))  # fmt: skip
    width = heads // kv_heads * (d + decode.EXTRA)
    partials = cp.full((decode.partial_slots(BLOCKS, count, kv_heads), width), np.nan, cp.float32)
    arrivals = cp.zeros(count * kv_heads, cp.int32)

    apart, inside = ((caches[0].copy(), caches[1].copy()) for _ in range(2))
    q = cp.zeros((count, heads, d), cp.uint16)
    rope_store(
        device, bf16, qkv, on_device(newest), on_device(slots), table, (norms[0], norms[1]), EPS, q, *apart
    )
    wanted, found = (cp.full((count, heads * d), 0x7FFF, cp.uint16) for _ in range(2))
    decode.attend_decode(
        device,
        bf16,
        q,
        *apart,
        *fixed,
        wanted,
        partials,
        arrivals,
        blocks=BLOCKS,
        scale=d**-0.5,
        window=window,
    )
    turn = Rotation(table, norms[0], norms[1], EPS)
    attend_few(device, bf16, qkv, *inside, *fixed, found, scale=d**-0.5, window=window, rotation=turn)
    assert error(widened(found, bf16), widened(wanted, bf16)) < 2 * rounding(bf16)
    for ours, theirs, before in zip(inside, apart, caches, strict=True):
        assert error(widened(ours, bf16), widened(theirs, bf16)) < rounding(bf16)
        assert ((ours != before).any(axis=(1, 3)) == (theirs != before).any(axis=(1, 3))).all()
