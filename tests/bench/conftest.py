"""A tiny model on the CPU backend and a hundredth of every load."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llmrs_cli.bench.workplace import Workplace
from llmrs_cli.engine.backends.cpu import CpuBackend
from llmrs_cli.engine.model.spec import from_config
from llmrs_cli.engine.weights.random import random_checkpoint
from tests.helpers.tiny_model import TinyModel, tiny_config


@pytest.fixture
def place() -> Iterator[Workplace]:
    backend = CpuBackend()
    yield Workplace(
        random_checkpoint(from_config(tiny_config(TinyModel()), {})),
        backend,
        scale=0.01,
        repeats=1,
        memory=1 << 30,
    )
    backend.close()
