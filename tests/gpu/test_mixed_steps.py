"""Steps in which sequences decode beside prompts: their attention overlaps, and the logits are the reference's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine.backends.base import Backend, RowLimits
from llmrs_cli.engine.backends.handles import ModelWeights
from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.engine.model.decoder import run_body, run_head
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.engine.weights.load import load_model
from tests.gpu.halves import cp
from tests.helpers.naive import forced_logits
from tests.helpers.steps import batch, greedy
from tests.helpers.tiny_model import TinyModel, write_tiny

VOCAB, CONTEXT = 320, 2048
BOUND = 4e-3
"""Of ‖Δlogits‖ / ‖logits‖ in float16, as for whole models."""
MODELS = {
    "heads of 32": TinyModel(context=CONTEXT),
    "heads of 64 with norms": TinyModel("qwen3", context=CONTEXT),
    "heads of 128, eight a key head": TinyModel(
        heads=8, kv_heads=1, head_dim=128, family="llama", context=CONTEXT
    ),
    "heads of 96, four key heads": TinyModel(
        heads=4, kv_heads=4, head_dim=96, family="llama", context=CONTEXT
    ),
}
EVEN = (1, 2, 63, 64, 65, 128, 129, *range(30, 250, 7))
Logits = NDArray[np.float32]


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    from llmrs_cli.engine.backends.cuda import CudaBackend

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "xdg"))
    opened = CudaBackend(0)
    yield opened
    opened.close()


class Mixed:
    """Sequences of which all but the last token of some is known, and the step with what is left."""

    def __init__(self, decoding: tuple[int, ...], prompts: tuple[int, ...], last: int) -> None:
        """Lengths: of those that decode, of the prompts behind them, and of one that decodes behind those."""
        self.lengths = (*decoding, *prompts, last)
        self.counts = [1] * len(decoding) + list(prompts) + [1]
        rng = np.random.default_rng(len(self.lengths))
        self.sequences = [rng.integers(0, VOCAB, n).tolist() for n in self.lengths]

    def steps(self, backend: Backend, model: ModelWeights, runs: int) -> Iterator[tuple[Any, list[Logits]]]:
        """(the step, logits of its tokens) of each of `runs` runs of the same step."""
        geometry, width = model.layers[0].geometry, CONTEXT // backend.block_size
        rows_count = len(self.lengths)
        kv = backend.alloc_kv(len(model.layers), width * rows_count, geometry.kv_heads, geometry.head_dim)
        rows = backend.open_rows(RowLimits(rows_count, CONTEXT, VOCAB))
        for row, ids in enumerate(self.sequences):
            rows.start(row, ids, greedy(prompt=len(ids)))
            rows.grant(row, 0, range(row * width, (row + 1) * width))
        before = [n - count for n, count in zip(self.lengths, self.counts, strict=True)]
        known = rows.begin(batch(*((row, 0, n, False) for row, n in enumerate(before) if n)))
        run_body(backend, model, kv, known)
        chunks = zip(before, self.counts, strict=True)
        step = rows.begin(batch(*((row, start, count, False) for row, (start, count) in enumerate(chunks))))
        for _ in range(runs):
            hidden = backend.run(step.key, partial(run_body, backend, model, kv, step))
            yield step, self.logits(backend, model, hidden)

    def logits(self, backend: Backend, model: ModelWeights, hidden: Any) -> list[Logits]:
        arange = np.arange if isinstance(backend, ReferenceBackend) else cp.arange
        ends = np.cumsum([0, *self.counts]).tolist()
        parts = (
            run_head(backend, model, hidden, arange(first, end, dtype=np.int32))
            for first, end in zip(ends, ends[1:], strict=False)
        )
        return [np.array(cp.asnumpy(part), np.float32) for part in parts]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("longest", [250, 1900], ids=["blocks of their own", "one even grid"])
@pytest.mark.parametrize("prompt", [130, 3])
def test_logits_are_the_references(
    backend: Backend, tmp_path: Path, name: str, longest: int, prompt: int
) -> None:
    checkpoint = open_checkpoint(write_tiny(tmp_path, MODELS[name]))
    mixed = Mixed((*EVEN, longest), (prompt, 2), 77)
    oracle = ReferenceBackend()
    wanted = forced_logits(oracle, load_model(checkpoint, oracle), mixed.sequences, mixed.counts, VOCAB)
    for step, found in mixed.steps(backend, load_model(checkpoint, backend), runs=3):
        assert step.decodes and step.tiles
        if backend.device.loader.arch == "sm_90a":  # type: ignore[attr-defined]
            assert bool(step.few) == (longest < 1000)
        for ours, right in zip(found, wanted, strict=True):
            assert np.linalg.norm(ours - right) < BOUND * np.linalg.norm(right)
