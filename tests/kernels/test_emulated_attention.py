"""Decode attention, run on the CPU from its CUDA source, against float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import bf16_to_f32, f32_to_bf16
from llmrs_cli.kernels.attend_decode import EXTRA, attend_decode, chunk_pages, partial_slots
from llmrs_cli.kernels.attend_prefill import TILE, PrefillShape, attend_prefill
from tests.helpers.emulate import EmulatedDevice, host

CONTEXTS = (1, 64, 0, 65, 130, 17, 321)
"""Tokens of each sequence; the third is a prompt's chunk, which this kernel passes over."""
BLOCKS, KV_HEADS, GROUP, D = 5, 2, 3, 32
HEADS = KV_HEADS * GROUP
Floats = NDArray[np.float64]


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> EmulatedDevice:
    return EmulatedDevice(tmp_path_factory.mktemp("emulated"))


def narrow(values: NDArray[Any]) -> NDArray[np.uint16]:
    return f32_to_bf16(values.astype(np.float32))


def wide(bits: NDArray[Any]) -> Floats:
    return bf16_to_f32(np.asarray(bits)).astype(np.float64)


class Case:
    """One step: a query a sequence over random pages."""

    def __init__(self, window: int) -> None:
        rng = np.random.default_rng(window)
        self.window = window
        pages = [-(-c // 64) for c in CONTEXTS]
        total = sum(pages)
        self.tables = np.full((len(CONTEXTS), max(pages)), -1, np.int32)
        order = iter(rng.permutation(total))
        for row, count in enumerate(pages):
            self.tables[row, :count] = [next(order) for _ in range(count)]
        self.first_page = np.array([*np.cumsum([0, *pages]), chunk_pages(total, max(pages), 2)], np.int32)
        self.cache = narrow(rng.standard_normal((2, total, KV_HEADS, 64, D)))
        self.queries = narrow(rng.standard_normal((len(CONTEXTS), HEADS, D)))

    def run(self, gpu: EmulatedDevice) -> Floats:
        """What the kernel gives."""
        count = len(CONTEXTS)
        out = host(np.full((count, HEADS * D), 0x7FC0, np.uint16))
        partials = host(np.zeros((partial_slots(BLOCKS, count, KV_HEADS), GROUP * (D + EXTRA)), np.float32))
        arrivals = host(np.zeros(count * KV_HEADS, np.int32))
        ids = np.arange(count + 1, dtype=np.int32)
        keys, values = (host(part) for part in self.cache)
        attend_decode(
            gpu, True, host(self.queries), keys, values, host(self.tables), host(ids[:-1]),
            host(np.array(CONTEXTS, np.int32)), host(ids), host(self.first_page), out, partials, arrivals,
            blocks=BLOCKS, scale=D**-0.5, window=self.window,
        )  # fmt: skip
        assert not arrivals.any()
        return wide(out).reshape(count, HEADS, D)

    def place(self, sequence: int, token: int) -> tuple[int, int]:
        return int(self.tables[sequence, token // 64]), token % 64

    def wanted(self, sequence: int) -> Floats:
        """Attention of a sequence over what the caches hold."""
        context = CONTEXTS[sequence]
        oldest = max(context - self.window, 0) if self.window else 0
        places = [self.place(sequence, t) for t in range(oldest, context)]
        keys, values = (
            np.stack([wide(part[page, :, at]) for page, at in places], axis=1) for part in self.cache
        )
        q = wide(self.queries[sequence]).reshape(KV_HEADS, GROUP, D)
        scores = np.einsum("hgd,htd->hgt", q, keys) * D**-0.5
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed: Floats = np.einsum("hgt,htd->hgd", weights, values).reshape(HEADS, D)
        return mixed


@pytest.mark.parametrize("window", [0, 70])
def test_attention_of_the_newest_token(gpu: EmulatedDevice, window: int) -> None:
    case = Case(window)
    found = case.run(gpu)
    for sequence, context in enumerate(CONTEXTS):
        if context:
            wanted = case.wanted(sequence)
            assert np.linalg.norm(found[sequence] - wanted) / np.linalg.norm(wanted) < 8e-3


Chunks = tuple[tuple[int, int], ...]
"""(queries, tokens in all) of each prompt; one query decodes, which prefill passes over."""


@pytest.mark.parametrize(
    ("d", "shape", "window", "little", "chunks"),
    [
        (32, PrefillShape(4, 2, 1), 50, False, ((130, 130), (40, 105), (1, 30), (3, 3))),
        (256, PrefillShape(4, 1, 1), 0, True, ((20, 73), (1, 3))),
    ],
    ids=["two tiles a warp and a window", "large heads with little shared memory"],
)
def test_attention_of_prompts(
    tmp_path: Path, d: int, shape: PrefillShape, window: int, little: bool, chunks: Chunks
) -> None:
    gpu = EmulatedDevice(tmp_path, arch=860 if little else 0)
    rng = np.random.default_rng(d)
    counts, contexts = np.array(chunks, np.int32).T
    starts = np.cumsum([0, *counts]).astype(np.int32)
    pages = -(-contexts // 64)
    cut = np.cumsum([0, *pages])
    tables = np.full((len(chunks), pages.max()), -1, np.int32)
    for row, count in enumerate(pages):
        tables[row, :count] = np.arange(cut[row], cut[row + 1])
    keys, values = narrow(rng.standard_normal((2, cut[-1], KV_HEADS, 64, d)))
    q = narrow(rng.standard_normal((starts[-1], HEADS, d)))
    tiles = np.cumsum([0, *np.where(counts == 1, 0, -(-counts // TILE))]).astype(np.int32)
    out = host(np.full((starts[-1], HEADS * d), 0x7FC0, np.uint16))
    attend_prefill(
        gpu, True, host(q), host(keys), host(values), host(tables), host(np.arange(len(chunks), dtype=np.int32)),
        host(contexts.copy()), host(starts), host(tiles), out, tiles=int(tiles[-1]) + 1, scale=d**-0.5,
        window=window, little=little, shape=shape,
    )  # fmt: skip
    found = wide(out).reshape(-1, HEADS, d)
    for row, (count, context) in enumerate(chunks):
        own = slice(starts[row], starts[row + 1])
        if count == 1:
            assert np.isnan(found[own]).all()
            continue
        wanted = prompt_attention(
            (q[own], *(part[cut[row] : cut[row + 1]] for part in (keys, values))), context, window
        )
        assert np.linalg.norm(found[own] - wanted) / np.linalg.norm(wanted) < 8e-3


def prompt_attention(bits: tuple[NDArray[Any], ...], context: int, window: int) -> Floats:
    """Causal attention of the last queries of one prompt over its pages: (queries, Hq, D)."""
    q, keys, values = (wide(part) for part in bits)
    d = q.shape[-1]
    k, v = (part.swapaxes(1, 2).reshape(-1, KV_HEADS, d)[:context] for part in (keys, values))
    scores = np.einsum("qhgd,thd->hgqt", q.reshape(len(q), KV_HEADS, GROUP, d), k) * d**-0.5
    distance = np.arange(context - len(q), context)[:, None] - np.arange(context)
    seen = (distance >= 0) & (distance < (window or context))
    weights = np.where(seen, np.exp(scores - scores.max()), 0)
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed: Floats = np.einsum("hgqt,thd->qhgd", weights, v).reshape(q.shape)
    return mixed
