"""A file that is cut short while a model loads: the model is whole, or the error names the file. Never a signal, never garbage.

The cut falls at every part of the load in turn; weights that are mapped would end the process here.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.engine.weights.load import load_model
from llmrs_cli.errors import ModelError
from tests.helpers.tiny_gguf import write_tiny_gguf
from tests.helpers.tiny_model import TinyModel, write_tiny

SMALL = TinyModel("llama", layers=1, hidden=32, ffn=32, vocab=320)


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
@pytest.mark.parametrize("left", [0.0, 0.3, 0.999])
def test_a_cut_at_any_moment_is_an_error_that_names_the_file(tmp_path: Path, kind: str, left: float) -> None:
    path = tmp_path / "m.gguf" if kind == "gguf" else tmp_path / "m"
    backend = ReferenceBackend()
    moments = refused = 0
    while True:
        if kind == "gguf":
            write_tiny_gguf(path, SMALL)
        else:
            write_tiny(path, SMALL)
        weights = path if kind == "gguf" else path / "model.safetensors"
        calls = 0

        def cut(done: int, total: int, at: int = moments, file: Path = weights) -> None:
            nonlocal calls
            calls += 1
            if calls == at + 1:
                os.truncate(file, int(left * file.stat().st_size))

        checkpoint = open_checkpoint(path)
        try:
            load_model(checkpoint, backend, cut)
        except ModelError as error:
            assert weights.name in error.message
            refused += 1
        moments += 1
        if calls < moments:
            break
    assert moments > 3 and refused > 0
