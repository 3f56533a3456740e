"""Prompt attention for Hopper, run on the CPU from its CUDA source, against float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import bf16_to_f32, f32_to_bf16
from llmrs_cli.kernels import attend_prompt
from llmrs_cli.kernels.attend_prompt import PromptShape
from tests.helpers.emulate import EmulatedDevice, host
from tests.helpers.launches import tensor_map

NAN, TILE = 0x7FFF, 64
Floats = NDArray[np.float64]
Chunks = tuple[tuple[int, int], ...]
"""(queries, tokens in all) of each sequence; one query decodes, and is left out."""
MIXED: Chunks = ((130, 330), (40, 105), (1, 30), (3, 3), (64, 128))


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedDevice]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attend_prompt, "tensor_map", tensor_map)
        yield EmulatedDevice(tmp_path_factory.mktemp("emulated"), hopper=True)


def narrow(values: NDArray[Any]) -> NDArray[np.uint16]:
    return f32_to_bf16(values.astype(np.float32))


def wide(bits: NDArray[Any]) -> Floats:
    return bf16_to_f32(np.asarray(bits)).astype(np.float64)


class Case:
    """Chunks of prompts over shuffled pages, in which what lies beyond a context is NaN."""

    def __init__(self, chunks: Chunks, d: int, group: int, kv_heads: int) -> None:
        rng = np.random.default_rng(d + group)
        self.counts, self.contexts = np.array(chunks, np.int32).T
        self.starts = np.cumsum([0, *self.counts]).astype(np.int32)
        self.pages = -(-self.contexts // 64)
        order = iter(rng.permutation(self.pages.sum() + 2))
        self.tables = np.full((len(chunks), self.pages.max()), -7, np.int32)
        self.cache = narrow(rng.standard_normal((2, self.pages.sum() + 2, kv_heads, 64, d)))
        for row, (context, count) in enumerate(zip(self.contexts, self.pages, strict=True)):
            self.tables[row, :count] = [next(order) for _ in range(count)]
            if context % 64:
                self.cache[:, self.tables[row, count - 1], :, context % 64 :] = NAN
        self.q = narrow(rng.standard_normal((self.starts[-1], group * kv_heads, d)) * 2)

    def run(self, gpu: EmulatedDevice, window: int, shape: PromptShape, blocks: int) -> NDArray[np.uint16]:
        tokens, heads, d = self.q.shape
        tiles = np.cumsum([0, *np.where(self.counts == 1, 0, -(-self.counts // TILE))]).astype(np.int32)
        out, drawn = host(np.full((tokens, heads * d), NAN, np.uint16)), host(np.zeros(1, np.int32))
        keys, values = (host(part) for part in self.cache)
        attend_prompt.attend_prompt(
            gpu, True, host(self.q), keys, values, host(self.tables),
            host(np.arange(len(self.counts), dtype=np.int32)), host(self.contexts.copy()), host(self.starts),
            host(tiles), out, drawn,
            tiles=int(tiles[-1]) + 1, multiprocessors=blocks, scale=d**-0.5, window=window, shape=shape,
        )  # fmt: skip
        assert drawn[0] == 0
        return np.asarray(out).reshape(tokens, heads, d)

    def wanted(self, row: int, window: int) -> Floats:
        own, pages = slice(self.starts[row], self.starts[row + 1]), self.tables[row, : self.pages[row]]
        k, v = (
            np.concatenate(list(wide(part[pages])), axis=1)[:, : self.contexts[row]] for part in self.cache
        )
        q = wide(self.q[own]).reshape(len(self.q[own]), len(k), -1, self.q.shape[-1])
        scores = np.einsum("qhgd,htd->hgqt", q, k) * q.shape[-1] ** -0.5
        distance = np.arange(k.shape[1])[-len(q) :, None] - np.arange(k.shape[1])
        seen = (distance >= 0) & (distance < (window or k.shape[1]))
        weights = np.where(
            seen, np.exp(scores - np.where(seen, scores, -np.inf).max(axis=-1, keepdims=True)), 0
        )
        mixed: Floats = np.einsum("hgqt,htd->qhgd", weights / weights.sum(axis=-1, keepdims=True), v)
        return mixed.reshape(self.q[own].shape)


@pytest.mark.parametrize(
    ("d", "group", "kv_heads", "window", "shape", "chunks"),
    [
        (64, 3, 2, 0, PromptShape(2, 128, 2), MIXED),
        (64, 7, 1, 50, PromptShape(2, 128, 4), MIXED),
        (64, 1, 2, 200, PromptShape(3, 64, 2, turns=False), MIXED),
        (128, 3, 1, 0, PromptShape(2, 128, 2), MIXED),
        (128, 8, 1, 1, PromptShape(3, 64, 3), ((60, 190), (65, 65))),
        (128, 1, 1, 0, PromptShape(2, 64, 4), ((127, 321), (1, 65), (2, 2100))),
    ],
    ids=["one page and more", "group of seven and a window", "a key head each", "heads of 128",
         "own token only", "one row, many pages"],
)  # fmt: skip
@pytest.mark.parametrize("blocks", [2, 40])
def test_attention_of_prompts(
    gpu: EmulatedDevice,
    d: int,
    group: int,
    kv_heads: int,
    window: int,
    shape: PromptShape,
    chunks: Chunks,
    blocks: int,
) -> None:
    case = Case(chunks, d, group, kv_heads)
    found = case.run(gpu, window, shape, blocks)
    for row, count in enumerate(case.counts):
        own = found[case.starts[row] : case.starts[row + 1]]
        if count == 1:
            assert (own == NAN).all()
        else:
            wanted = case.wanted(row, window)
            assert np.linalg.norm(wide(own) - wanted) < 4e-3 * np.linalg.norm(wanted)


@pytest.mark.parametrize("window", [0, 150])
def test_bits_depend_on_a_tokens_own_context_alone(gpu: EmulatedDevice, window: int) -> None:
    whole = Case(((300, 300),), 64, 3, 1)
    found = whole.run(gpu, window, PromptShape(2, 128, 2), blocks=3)
    for first, past in ((0, 70), (70, 135), (135, 300)):
        part = Case(((past - first, past),), 64, 3, 1)
        part.cache, part.q = whole.cache.copy(), whole.q[first:past]
        part.tables = whole.tables
        assert (part.run(gpu, window, PromptShape(2, 128, 2), blocks=1) == found[first:past]).all()
