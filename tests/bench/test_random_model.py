"""Models of random weights that load targets serve, 16-bit and 4-bit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.gpu_targets import Place, prefixes
from benchmarks.random_model import SMALL, random_model
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.server.run import allow_files
from tests.helpers.tiny_model import TinyModel, write_tiny


def forms(folder: Path) -> set[str]:
    return {parameter.form.split()[0] for parameter in open_checkpoint(folder).parameters.values()}


@pytest.mark.parametrize(("awq", "expected"), [(False, {"float16"}), (True, {"float16", "4-bit"})])
def test_a_configuration_becomes_a_checkpoint_with_a_tokenizer(
    tmp_path: Path, awq: bool, expected: set[str]
) -> None:
    given = write_tiny(tmp_path, TinyModel(awq=awq))
    (given / "model.safetensors").unlink()
    with random_model(str(given)) as folder:
        assert forms(folder) == expected
        assert open_checkpoint(folder).tokenizer_json is not None
    assert not folder.exists()


def test_the_small_ones_are_what_their_names_say() -> None:
    for name in SMALL:
        with random_model(name) as folder:
            assert ("4-bit" in forms(folder)) == name.endswith("awq")


def test_a_load_of_prefixes_runs_on_4_bit_weights() -> None:
    allow_files()
    with random_model("tiny-awq") as folder:
        result = asyncio.run(prefixes(Place(str(folder), "cpu", small=True)))
    assert not result.missed
    assert result.figures["cached_tokens"] > 0
