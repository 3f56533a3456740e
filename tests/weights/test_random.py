"""Random checkpoints: complete, of the right kind, repeatable, and sane enough to run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.engine.model import names
from llmrs_cli.engine.weights.checkpoint import Checkpoint
from llmrs_cli.engine.weights.load import load_model
from llmrs_cli.engine.weights.packed import Dense, Packed4
from llmrs_cli.engine.weights.random import DEVIATION, random_checkpoint
from llmrs_cli.errors import ModelError
from tests.helpers.naive import naive_logits
from tests.helpers.tiny_model import TinyModel, tiny_config

UP = names.in_layer(1, "mlp.up_proj.weight")


def config_only(folder: Path, model: TinyModel) -> Checkpoint:
    (folder / "config.json").write_text(json.dumps(tiny_config(model)))
    return random_checkpoint(folder)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("awq", [False, True])
def test_a_configuration_alone_gives_a_model_with_finite_and_varied_logits(
    tmp_path: Path, family: str, awq: bool
) -> None:
    checkpoint = config_only(tmp_path, TinyModel(family, awq=awq))  # type: ignore[arg-type]
    logits = naive_logits(load_model(checkpoint, ReferenceBackend()), (1, 2, 3))
    assert np.isfinite(logits).all() and logits.std() > 0.01
    assert np.abs(logits).max() < 100


def test_weights_have_the_stored_dtype_and_deviation(tmp_path: Path) -> None:
    model = TinyModel(hidden=256, ffn=1024, config={"torch_dtype": "bfloat16"})
    weight = config_only(tmp_path, model).parameters[UP].read()
    assert isinstance(weight, Dense) and weight.dtype == "bfloat16" and weight.shape == (1024, 256)
    assert weight.dequantise().std() == pytest.approx(DEVIATION, rel=0.02)


def test_layers_are_packed_where_the_configuration_says_so(tmp_path: Path) -> None:
    parameters = config_only(tmp_path, TinyModel(awq=True, group=32)).parameters
    weight = parameters[UP].read()
    assert isinstance(weight, Packed4) and weight.group == 32 and weight.shape == (256, 128)
    assert weight.zeros is not None and set(np.unique(weight.zeros)) == {6, 7, 8, 9}
    assert 0.4 * DEVIATION < weight.dequantise().std() < 1.2 * DEVIATION
    assert isinstance(parameters[names.EMBEDDING].read(), Dense)
    arrays = (weight.codes, weight.scales, weight.zeros)
    assert parameters[UP].nbytes == sum(array.nbytes for array in arrays)


def test_parameters_differ_but_reading_again_gives_the_same(tmp_path: Path) -> None:
    first, again = (config_only(tmp_path, TinyModel()).parameters for _ in range(2))
    np.testing.assert_array_equal(first[UP].read().dequantise(), again[UP].read().dequantise())
    gate = names.in_layer(1, "mlp.gate_proj.weight")
    assert not np.array_equal(first[UP].read().dequantise(), first[gate].read().dequantise())


def test_a_specification_does_as_well_as_a_folder(tmp_path: Path) -> None:
    spec = config_only(tmp_path, TinyModel()).spec
    checkpoint = random_checkpoint(spec, seed=3)
    assert checkpoint.spec == spec and checkpoint.tokenizer_json is None
    assert set(checkpoint.parameters) == set(names.expected_shapes(spec))
    assert checkpoint.identity != random_checkpoint(spec, seed=4).identity
    assert checkpoint.parameters[UP].read().shape == (256, 128)


def test_an_unknown_quantisation_is_refused_as_in_a_real_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="'fp8'"):
        config_only(tmp_path, TinyModel(config={"quantization_config": {"quant_method": "fp8"}}))
