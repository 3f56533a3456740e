"""Late masks on a GPU, one step behind: the same bits as with masks in time, penalties and all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from llmrs_cli.engine.api import open_engine
from llmrs_cli.engine.types import TokenEvent
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from tests.engine.test_late_masks import Changing, answers, check_alike, some_late
from tests.helpers.tiny_model import TinyModel, write_tiny


@pytest.mark.parametrize("seed", range(4))
def test_late_masks_change_no_bit_of_anybody(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llmrs_cli.engine.backends.cuda import CudaBackend

    monkeypatch.setenv("LLMRS_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
    model = write_tiny(tmp_path, TinyModel("qwen3", seed=3))

    def told(late: Sequence[int]) -> dict[str, list[TokenEvent]]:
        backend = CudaBackend(0, deterministic=True)
        engine = open_engine(
            open_checkpoint(model), backend, context=320, rows=8, memory=2 << 30, grammars=Changing
        )
        return answers(engine, 1, late, monkeypatch)

    check_alike(told(()), told(some_late(seed)), atol=0)
