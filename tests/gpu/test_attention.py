"""attend_decode.cu and attend_prefill.cu against float64, over mixed lengths, groups, head sizes and windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.kernels import attend_decode as decode
from llmrs_cli.kernels import attend_prefill as prefill
from llmrs_cli.kernels.device import CudaDevice
from tests.gpu.halves import TYPES, cp, error, halves, rounding, widened


@dataclass
class Case:
    """Sequences in pages, and the float64 answer (T, Hq·D)."""

    q: Any
    keys: Any
    values: Any
    tables: Any
    rows: Any
    contexts: Any
    query_start: Any
    wanted: NDArray[np.float64]


def make(
    contexts: list[int], counts: list[int], heads: int, kv_heads: int, d: int, bf16: bool, window: int = 0
) -> Case:
    rng = np.random.default_rng(sum(contexts) + d)
    pages = [-(-context // 64) for context in contexts]
    blocks = sum(pages) + 3
    ids = rng.permutation(blocks).astype(np.int32)
    tables = np.full((len(contexts), max(pages)), -1, np.int32)
    cut = np.cumsum([0, *pages])
    for s, count in enumerate(pages):
        tables[s, :count] = ids[cut[s] : cut[s + 1]]
    # What lies beyond a context must not matter, even NaN.
    keys, keys64 = halves(rng.standard_normal((blocks, kv_heads, 64, d)), bf16)
    values, values64 = halves(rng.standard_normal((blocks, kv_heads, 64, d)), bf16)
    for s, context in enumerate(contexts):
        if context % 64:
            keys[tables[s, pages[s] - 1], :, context % 64 :] = 0x7FFF
            values[tables[s, pages[s] - 1], :, context % 64 :] = 0x7FFF
    q, q64 = halves(rng.standard_normal((sum(counts), heads, d)) * 2, bf16)
    start = np.cumsum([0, *counts]).astype(np.int32)
    wanted = np.empty((sum(counts), heads * d))
    for s, context in enumerate(contexts):
        k = keys64[tables[s, : pages[s]]].transpose(1, 0, 2, 3).reshape(kv_heads, -1, d)[:, :context]
        v = values64[tables[s, : pages[s]]].transpose(1, 0, 2, 3).reshape(kv_heads, -1, d)[:, :context]
        own = q64[start[s] : start[s + 1]].reshape(-1, kv_heads, heads // kv_heads, d)
        scores = np.einsum("nhgd,hkd->hgnk", own, k) * d**-0.5
        at = np.arange(context - counts[s], context)[:, None]
        key = np.arange(context)[None]
        hidden = (key > at) | ((key <= at - window) if window else False)
        scores = np.where(hidden, -np.inf, scores)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        wanted[start[s] : start[s + 1]] = np.einsum("hgnk,hkd->nhgd", weights, v).reshape(counts[s], -1)
    lengths = np.array(contexts, np.int32)
    rows = cp.arange(len(contexts), dtype=cp.int32)[::-1].copy()
    return Case(
        q, keys, values, cp.asarray(tables[::-1].copy()), rows, cp.asarray(lengths), cp.asarray(start), wanted
    )


def prefix(counts: list[int]) -> Any:
    return cp.asarray(np.cumsum([0, *counts]).astype(np.int32))


def run_decode(device: CudaDevice, case: Case, bf16: bool, d: int, blocks: int, window: int = 0) -> float:
    contexts = cp.asnumpy(case.contexts).tolist()
    out = cp.full(case.wanted.shape, 0x7FFF, cp.uint16)
    group = case.q.shape[1] // case.keys.shape[1]
    kv_heads = case.keys.shape[1]
    pages = [-(-c // 64) for c in contexts]
    chunk = decode.chunk_pages(sum(pages), max(pages), max(blocks // kv_heads, 1))
    slots = decode.partial_slots(blocks, len(pages), kv_heads)
    partials = cp.full((slots, group * (d + decode.EXTRA)), np.nan, cp.float32)
    first_page = cp.asarray(np.array([*np.cumsum([0, *pages]), chunk], np.int32))
    arrivals = cp.zeros(len(contexts) * case.keys.shape[1], cp.int32)
    for _ in range(2):  # the second run sees what the first left behind
        decode.attend_decode(
            device, bf16, case.q, case.keys, case.values, case.tables, case.rows, case.contexts, case.query_start,
            first_page, out, partials, arrivals,
            blocks=blocks, scale=d**-0.5, window=window,
        )  # fmt: skip
    assert not arrivals.any()
    return error(widened(out, bf16), case.wanted)


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize("d", [16, 32, 64, 96, 128, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(7, 1), (4, 4), (16, 1), (6, 2)])
def test_decode(device: CudaDevice, bf16: bool, d: int, heads: int, kv_heads: int) -> None:
    contexts = [1, 63, 64, 65, 300, 1000, 17]
    case = make(contexts, [1] * len(contexts), heads, kv_heads, d, bf16)
    for blocks in (1, 13, 264):
        assert run_decode(device, case, bf16, d, blocks) < 2 * rounding(bf16)


@pytest.mark.parametrize("window", [1, 64, 100, 5000])
def test_decode_with_a_window(device: CudaDevice, window: int) -> None:
    case = make([50, 640, 1001], [1, 1, 1], 8, 2, 64, True, window)
    assert run_decode(device, case, True, 64, 40, window) < 2 * rounding(True)


def test_decode_of_a_long_context(device: CudaDevice) -> None:
    case = make([32768, 5], [1, 1], 28, 4, 128, True)
    assert run_decode(device, case, True, 128, 264) < 2 * rounding(True)


def run_prefill(
    device: CudaDevice, case: Case, counts: list[int], bf16: bool, d: int, window: int = 0,
    shape: prefill.PrefillShape | None = None,
) -> float:  # fmt: skip
    shape = shape or prefill.shape_for(d)
    tiles = [-(-count // prefill.TILE) for count in counts]
    out = cp.full(case.wanted.shape, 0x7FFF, cp.uint16)
    prefill.attend_prefill(
        device, bf16, case.q, case.keys, case.values, case.tables, case.rows, case.contexts, case.query_start,
        prefix(tiles), out, tiles=sum(tiles) + 2, scale=d**-0.5, window=window, shape=shape,
    )  # fmt: skip
    return error(widened(out, bf16), case.wanted)


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize("d", [16, 32, 64, 96, 128, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(7, 1), (4, 4)])
def test_prefill(device: CudaDevice, bf16: bool, d: int, heads: int, kv_heads: int) -> None:
    contexts, counts = [1, 64, 129, 500, 300, 70], [1, 64, 129, 77, 300, 2]
    case = make(contexts, counts, heads, kv_heads, d, bf16)
    assert run_prefill(device, case, counts, bf16, d) < 2 * rounding(bf16)


@pytest.mark.parametrize("window", [1, 30, 64, 200])
def test_prefill_with_a_window(device: CudaDevice, window: int) -> None:
    counts = [300, 65, 10]
    case = make([300, 200, 500], counts, 4, 2, 128, True, window)
    assert run_prefill(device, case, counts, True, 128, window) < 2 * rounding(True)


def test_prefill_with_wider_blocks(device: CudaDevice) -> None:
    counts = [300, 65, 10]
    case = make([300, 200, 500], counts, 4, 2, 128, True)
    for shape in (prefill.PrefillShape(8, 1, 1), prefill.PrefillShape(4, 2, 1)):
        assert run_prefill(device, case, counts, True, 128, shape=shape) < 2 * rounding(True)
    case = make([300, 200, 500], counts, 14, 2, 64, True)
    shape = prefill.PrefillShape(4, 2, 2)
    assert shape.queries == 2 * prefill.TILE
    assert run_prefill(device, case, counts, True, 64, shape=shape) < 2 * rounding(True)
