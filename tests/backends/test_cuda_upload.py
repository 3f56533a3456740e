"""Weights travel through pinned buffers and arrive as they were, on a GPU that only pretends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from llmrs_cli.engine.weights.packed import Dense
from tests.helpers.fake_cuda import cuda_backend


@pytest.fixture
def backend() -> Iterator[Any]:
    with cuda_backend() as opened:
        yield opened


@pytest.fixture
def module(backend: Any) -> ModuleType:
    import llmrs_cli.engine.backends.cuda_upload as found

    return found


def values(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 1 << 16, count).astype(np.uint16)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 64, 1000])
def test_every_byte_arrives_whatever_the_size_of_a_piece(module: Any, count: int) -> None:
    upload = module.Upload(piece=16, share=6)
    sent = values(count)
    target = module.cp.zeros(count, np.uint16)
    upload.put(target, sent)
    upload.close()
    assert target.tolist() == sent.tolist()


def test_threads_end_with_the_upload(module: Any) -> None:
    before = threading.active_count()
    upload = module.Upload(piece=64, share=8)
    upload.put(module.cp.zeros(100, np.uint16), values(100))
    assert threading.active_count() > before
    upload.close()
    assert threading.active_count() == before
    upload.put(module.cp.zeros(4, np.uint16), values(4))  # it can be taken up again
    upload.close()


def test_two_buffers_take_turns_and_wait_for_the_device(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    event: Any = module.cp.cuda.Event
    monkeypatch.setattr(event, "synchronize", lambda self: waited.append(1))
    upload = module.Upload(piece=8, share=8)
    upload.put(module.cp.zeros(20, np.uint16), values(20))
    assert len(waited) == 3  # five pieces, two of them into fresh buffers
    upload.close()


def test_parts_are_stacked_and_pairs_take_turns(backend: Any) -> None:
    q, k, v = (Dense(values(n * 8, n).reshape(n, 8)) for n in (16, 8, 24))
    stacked = backend.prepare_linear([q, k, v], [None] * 3, "qkv")
    assert stacked.weight.tolist() == np.concatenate([q.data, k.data, v.data]).tolist()
    gate, up = (Dense(values(16 * 8, n).reshape(16, 8)) for n in (1, 2))
    paired = backend.prepare_linear([gate, up], [None] * 2, "gate_up")
    wanted = [gate.data[:8], up.data[:8], gate.data[8:], up.data[8:]]
    assert paired.weight.tolist() == np.concatenate(wanted).tolist()
    backend.close()
