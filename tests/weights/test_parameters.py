"""Rows that are read alone are those of the whole parameter, in every format, and nothing else is read for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.engine.weights.files import Bytes, DataFile
from llmrs_cli.engine.weights.parameters import Parameter
from tests.helpers.tiny_gguf import write_tiny_gguf
from tests.helpers.tiny_model import TinyModel, write_tiny

EMBEDDING = "model.embed_tokens.weight"


def gguf(folder: Path) -> Path:
    return write_tiny_gguf(folder / "x.gguf", TinyModel("llama", layers=1))


def dense(folder: Path) -> Path:
    return write_tiny(folder / "m", TinyModel("qwen2", layers=1))


def awq(folder: Path) -> Path:
    return write_tiny(folder / "m", TinyModel("qwen2", layers=1, awq=True))


@pytest.mark.parametrize("write", [dense, awq, gguf])
def test_slabs_are_the_rows_of_the_whole(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    for name, parameter in open_checkpoint(write(tmp_path)).parameters.items():
        whole = parameter.read().dequantise()
        slabs = list(parameter.slabs(7))
        assert [first for first, _ in slabs] == list(range(0, len(whole), 7)), name
        stacked = np.concatenate([rows.dequantise() for _, rows in slabs])
        assert stacked.tobytes() == whole.tobytes(), name


@pytest.mark.parametrize("write", [dense, gguf])
def test_no_more_of_an_embedding_is_read_than_the_slab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], Path]
) -> None:
    parameter: Parameter = open_checkpoint(write(tmp_path)).parameters[EMBEDDING]
    read: list[int] = []
    real = DataFile.read

    def counted(self: DataFile, offset: int, count: int) -> Bytes:
        read.append(count)
        return real(self, offset, count)

    monkeypatch.setattr(DataFile, "read", counted)
    height = 13
    list(parameter.slabs(height))
    assert sum(read) == parameter.nbytes
    assert max(read) == parameter.nbytes // parameter.shape[0] * height
