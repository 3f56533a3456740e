"""attend_prompt.cu against float64 and against attend_prefill.cu, on Hopper: starts, page ends, windows, groups, company."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmrs_cli.engine.backends.base import Backend
from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.engine.weights.load import load_model
from llmrs_cli.kernels import attend_prompt
from llmrs_cli.kernels.attend_prefill import TILE
from llmrs_cli.kernels.attend_prompt import HEADS, PromptShape
from llmrs_cli.kernels.device import CudaDevice
from tests.gpu.halves import TYPES, cp, error, rounding, widened
from tests.gpu.test_attention import Case, make, prefix
from tests.gpu.test_mixed_steps import BOUND, EVEN, VOCAB, Mixed
from tests.helpers.naive import forced_logits
from tests.helpers.tiny_model import TinyModel, write_tiny

SHAPES = (
    PromptShape(2, 128, 2),
    PromptShape(2, 128, 2, turns=False),
    PromptShape(2, 64, 4),
    PromptShape(3, 64, 3),
)


@pytest.fixture(autouse=True)
def hopper(device: CudaDevice) -> None:
    if device.loader.arch != "sm_90a":
        pytest.skip(reason="attend_prompt is made of Hopper's instructions")


def attended(
    device: CudaDevice,
    case: Case,
    counts: list[int],
    bf16: bool,
    window: int = 0,
    shape: PromptShape | None = None,
) -> Any:
    """(T, Hq·D) bits of the second of two launches, which finds the counter as the first has left it."""
    tiles = [0 if count == 1 else -(-count // TILE) for count in counts]
    d, drawn = case.q.shape[2], cp.zeros(1, cp.int32)
    for _ in range(2):
        out = cp.full(case.wanted.shape, 0x7FFF, cp.uint16)
        attend_prompt.attend_prompt(
            device, bf16, case.q, case.keys, case.values, case.tables, case.rows, case.contexts, case.query_start,
            prefix(tiles), out, drawn, tiles=sum(tiles) + 2, multiprocessors=device.multiprocessors,
            scale=d**-0.5, window=window, shape=shape,
        )  # fmt: skip
        assert not drawn.any()
    return out


def check(
    device: CudaDevice, contexts: list[int], counts: list[int], heads: tuple[int, int], d: int, bf16: bool = True,
    window: int = 0, shape: PromptShape | None = None,
) -> None:  # fmt: skip
    case = make(contexts, counts, *heads, d, bf16, window)
    found = attended(device, case, counts, bf16, window, shape)
    assert error(widened(found, bf16), case.wanted) < 2 * rounding(bf16)


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize("d", HEADS)
@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (4, 2), (3, 1), (7, 1), (16, 2)])
def test_groups(device: CudaDevice, bf16: bool, d: int, heads: tuple[int, int]) -> None:
    check(device, [2, 64, 129, 500, 300, 70], [2, 64, 129, 77, 300, 2], heads, d, bf16)


@pytest.mark.parametrize("d", HEADS)
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(device: CudaDevice, d: int, shape: PromptShape) -> None:
    check(device, [2, 64, 129, 500, 700, 70], [2, 64, 129, 77, 300, 2], (14, 2), d, shape=shape)


@pytest.mark.parametrize("d", HEADS)
def test_contexts_that_end_around_pages(device: CudaDevice, d: int) -> None:
    ends = [64 * page + off for page in range(1, 11) for off in (-1, 0, 1)]
    check(device, [*ends, 700, 2], [*(2 + end % 61 for end in ends), 700, 2], (7, 1), d)


@pytest.mark.parametrize("d", HEADS)
@pytest.mark.parametrize("context", [1200, 2048, 4111])
def test_long_prompts(device: CudaDevice, d: int, context: int) -> None:
    check(device, [context, context, context], [context // 2, 130, 3], (3, 1), d)


@pytest.mark.parametrize("d", HEADS)
@pytest.mark.parametrize("window", [1, 30, 64, 128, 200, 1000])
def test_windows(device: CudaDevice, d: int, window: int) -> None:
    check(device, [300, 200, 500, 1100], [300, 65, 10, 600], (4, 2), d, window=window)


@pytest.mark.parametrize("d", HEADS)
@pytest.mark.parametrize("window", [0, 150])
def test_bits_depend_on_a_tokens_own_context_alone(device: CudaDevice, d: int, window: int) -> None:
    whole = make([700, 90], [700, 90], 14, 2, d, True, window)
    found = attended(device, whole, [700, 90], True, window)
    for first, past in ((0, 64), (64, 199), (199, 700)):
        rows = slice(first, past)
        part = replace(
            whole, q=whole.q[rows].copy(), tables=whole.tables[1:].copy(), rows=cp.zeros(1, cp.int32),
            contexts=cp.full(1, past, cp.int32), query_start=prefix([past - first]), wanted=whole.wanted[rows],
        )  # fmt: skip
        assert (attended(device, part, [past - first], True, window) == found[rows]).all()


def test_sequences_that_decode_are_left_out(device: CudaDevice) -> None:
    contexts, counts = [40, 300, 70, 200, 64], [1, 130, 1, 65, 1]
    case = make(contexts, counts, 8, 1, 128, True)
    found = attended(device, case, counts, True)
    ends = np.cumsum([0, *counts])
    for first, past, count in zip(ends, ends[1:], counts, strict=False):
        if count == 1:
            assert (found[first:past] == 0x7FFF).all()
        else:
            assert error(widened(found[first:past], True), case.wanted[first:past]) < 2 * rounding(True)


def test_more_sequences_than_a_warp_looks_at_once(device: CudaDevice) -> None:
    counts = [1] * 70 + [65, 3, 130] + [1] * 30 + [2]
    case = make([count + 11 for count in counts], counts, 4, 1, 64, True)
    found = widened(attended(device, case, counts, True), True)
    own = np.repeat(np.array(counts) > 1, counts)
    assert error(found[own], case.wanted[own]) < 2 * rounding(True)


# -- mixed steps through the backend -----------------------------------------------------------------------


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    from llmrs_cli.engine.backends.cuda import CudaBackend

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "xdg"))
    opened = CudaBackend(0)
    opened._attention = replace(opened._attention, prompt_tokens=1)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    "tiny",
    [
        TinyModel("qwen3", context=2048),
        TinyModel(heads=8, kv_heads=1, head_dim=128, family="llama", context=2048),
    ],
    ids=["heads of 64 with norms", "heads of 128"],
)
@pytest.mark.parametrize("longest", [360, 1900], ids=["blocks of their own", "one even grid"])
@pytest.mark.parametrize("prompt", [130, 3])
def test_logits_beside_sequences_that_decode(
    backend: Backend, tmp_path: Path, tiny: TinyModel, longest: int, prompt: int
) -> None:
    checkpoint = open_checkpoint(write_tiny(tmp_path, tiny))
    mixed = Mixed((*EVEN, longest), (prompt, 2), 77)
    oracle = ReferenceBackend()
    wanted = forced_logits(oracle, load_model(checkpoint, oracle), mixed.sequences, mixed.counts, VOCAB)
    for step, found in mixed.steps(backend, load_model(checkpoint, backend), runs=3):
        assert step.decodes and step.tiles
        for ours, right in zip(found, wanted, strict=True):
            assert np.linalg.norm(ours - right) < BOUND * np.linalg.norm(right)
