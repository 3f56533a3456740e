"""Whole models on the GPU: stored right answers, the reference's logits, and the same tokens in any company."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine.arrays import StepBatch
from llmrs_cli.engine.backends.base import Backend, RowLimits
from llmrs_cli.engine.backends.handles import ModelWeights
from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.engine.backends.rows import HostRows
from llmrs_cli.engine.model.decoder import run_body, run_head
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.engine.weights.load import load_model
from tests.conftest import DATA
from tests.gpu.halves import cp, error
from tests.helpers.generate import generate
from tests.helpers.naive import forced_logits
from tests.helpers.steps import batch, greedy, start_alike
from tests.helpers.tolerances import OUTLIER_LOGITS, token_errors

CHECKPOINTS = sorted(path.name for path in (DATA / "golden" / "checkpoints").iterdir())
MARGIN = {True: 0.5, False: 0.1}
"""By bf16: a smaller lead of the best logit over the second decides nothing."""
LOGITS = {True: 2e-2, False: 3e-3}
"""By bf16: bound of ‖Δlogits‖ / ‖logits‖ against the reference."""


@pytest.fixture(params=[False, True], ids=["measured", "candidates"])
def backend(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Backend]:
    """With the kernels that run by default, and with all others that a setting chooses."""
    from llmrs_cli.engine.backends.cuda import CudaBackend
    from llmrs_cli.engine.backends.cuda_dense import MEASURED, Paths

    candidates = Paths(rows=False, few_attend=False, prompt_tokens=1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "xdg"))
    opened = CudaBackend(0, paths=candidates if request.param else MEASURED)
    yield opened
    opened.close()


def gpu_logits(
    backend: Backend, model: ModelWeights, sequences: Sequence[Sequence[int]], chunk: int, vocab: int
) -> list[NDArray[np.float32]]:
    """Logits of every token of each sequence, computed `chunk` tokens a step."""
    geometry = model.layers[0].geometry
    longest = max(map(len, sequences))
    width = -(-longest // backend.block_size)
    kv = backend.alloc_kv(len(model.layers), width * len(sequences), geometry.kv_heads, geometry.head_dim)
    rows = backend.open_rows(RowLimits(len(sequences), longest, vocab))
    for row, ids in enumerate(sequences):
        rows.start(row, ids, greedy(prompt=len(ids)))
        rows.grant(row, 0, range(row * width, (row + 1) * width))
    found: list[list[NDArray[np.float32]]] = [[] for _ in sequences]
    for start in range(0, longest, chunk):
        live = [(row, min(chunk, len(ids) - start)) for row, ids in enumerate(sequences) if len(ids) > start]
        step = rows.begin(batch(*((row, start, count, False) for row, count in live)))
        hidden = backend.run(step.key, partial(run_body, backend, model, kv, step))
        first = 0
        for row, count in live:
            for part in range(0, count, 256):
                tokens = cp.arange(first + part, first + min(part + 256, count), dtype=cp.int32)
                found[row].append(cp.asnumpy(run_head(backend, model, hidden, tokens)))
            first += count
    return [np.concatenate(parts) for parts in found]


def assert_near(
    found: list[NDArray[np.float32]], wanted: Sequence[NDArray[Any]], bf16: bool, name: str, chunk: int
) -> None:
    """Logits (T, V) of some sequences; where a gate magnifies what is rounded, half of all tokens are no further than usual."""
    pairs = list(zip(found, wanted, strict=True))
    assert max(error(*pair) for pair in pairs) < OUTLIER_LOGITS.get(name, LOGITS[bf16]), f"chunk {chunk}"
    assert np.median(np.concatenate([token_errors(*pair) for pair in pairs])) < LOGITS[bf16], f"chunk {chunk}"


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_logits_are_the_references(backend: Backend, name: str) -> None:
    folder = DATA / "golden" / "checkpoints" / name
    checkpoint = open_checkpoint(folder)
    vocab = checkpoint.spec.vocab
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, vocab, n).tolist() for n in (1, 5, 64, 65, 130)]
    oracle = ReferenceBackend()
    wanted = forced_logits(
        oracle, load_model(checkpoint, oracle), sequences, [len(s) for s in sequences], vocab
    )
    model = load_model(checkpoint, backend)
    bf16: bool = model.head.bf16  # type: ignore[attr-defined]
    for chunk in (1, 7, 1000):
        assert_near(gpu_logits(backend, model, sequences, chunk, vocab), wanted, bf16, name, chunk)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_answers_are_the_stored_ones(backend: Backend, name: str) -> None:
    folder = DATA / "golden" / "checkpoints" / name
    checkpoint = open_checkpoint(folder)
    model, vocab = load_model(checkpoint, backend), checkpoint.spec.vocab
    expected = json.loads((folder / "expected.json").read_text())
    answers = generate(
        backend, model, vocab, [row["prompt_ids"] for row in expected], len(expected[0]["greedy_ids"])
    )
    for row, answer in zip(expected, answers, strict=True):
        bound = MARGIN[model.head.bf16]  # type: ignore[attr-defined]
        sure = next((i for i, margin in enumerate(row["top2_margin"]) if margin < bound), len(answer))
        assert answer[:sure] == row["greedy_ids"][:sure]


def test_staging_is_that_of_the_host(backend: Backend) -> None:
    limits = RowLimits(6, 300, 100)
    host, gpu = HostRows(limits, backend.block_size), backend.open_rows(limits)
    start_alike(3, host, gpu)
    for chunks in (
        [(4, 0, 150, False, 20), (0, 7, 1, True)],
        [(2, 63, 1, True), (5, 64, 2, True), (0, 0, 65, False)],
    ):
        plan: StepBatch = batch(*chunks)
        wanted: Any = host.begin(plan)
        found: Any = gpu.begin(plan)
        found.gather(backend.device, found.scored_tokens.size)  # type: ignore[attr-defined]
        count = len(wanted.ids)
        for name in ("ids", "positions", "slots"):
            assert cp.asnumpy(getattr(found, name))[:count].tolist() == getattr(wanted, name).tolist(), name
        for name in ("query_start", "context_lens"):
            right = getattr(wanted, name)
            assert cp.asnumpy(getattr(found, name))[: len(right)].tolist() == right.tolist(), name
        for name in ("sample_tokens", "sample_rows", "scored_tokens", "scored_targets"):
            assert cp.asnumpy(getattr(found, name)).tolist() == getattr(wanted, name).tolist(), name
        assert (cp.asnumpy(found.slots)[count:] == -1).all()
