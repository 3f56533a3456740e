"""AWQ's files: every tensor that a quantised model has is known before it is written, and words hold what was put in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine.model.names import expected_shapes
from llmrs_cli.engine.quantise.files import awq_tensors, entries, quantisation_config
from llmrs_cli.engine.quantise.layer import LINEARS, no_inputs, read_layer
from llmrs_cli.engine.quantise.rounding import Rounded
from llmrs_cli.engine.weights.awq import awq_weight
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.engine.weights.quantisation import Quantisation, read_quantisation
from tests.helpers.tiny_model import TinyModel, write_tiny

FAMILIES = [TinyModel("llama", tied=True), TinyModel("qwen2"), TinyModel("qwen3")]


@given(
    eights=st.integers(1, 6),
    groups=st.integers(1, 4),
    group=st.sampled_from([8, 32]),
    seed=st.integers(0, 99),
)
def test_words_are_read_back_as_they_were_made(eights: int, groups: int, group: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, k = 8 * eights, groups * group
    rounded = Rounded(
        rng.integers(0, 16, (n, k)).astype(np.uint8),
        rng.integers(0, 16, (n, groups)).astype(np.uint8),
        rng.uniform(0.1, 1, (n, groups)).astype(np.float16),
    )
    pieces = awq_tensors(rounded)
    assert {name: values.shape for name, values in pieces.items()} == {
        "qweight": (k, eights),
        "qzeros": (groups, eights),
        "scales": (groups, n),
    }
    found = awq_weight(pieces["qweight"], pieces["qzeros"], pieces["scales"], group).canonical()
    np.testing.assert_array_equal(found.unpack(), rounded.codes)
    np.testing.assert_array_equal(found.dequantise(), rounded.dequantise())


@pytest.mark.parametrize("model", FAMILIES, ids=lambda model: model.family)
def test_entries_are_the_model_s_parameters_with_three_for_each_linear_layer(
    tmp_path: Path, model: TinyModel
) -> None:
    checkpoint = open_checkpoint(write_tiny(tmp_path / "m", model))
    found = entries(checkpoint, 32)
    wanted = set()
    for name in expected_shapes(checkpoint.spec):
        module = name.removesuffix(".weight")
        linear = module.endswith(LINEARS)
        wanted |= {f"{module}.{piece}" for piece in ("qweight", "qzeros", "scales")} if linear else {name}
    assert set(found) == wanted
    assert {entry.dtype for entry in found.values()} == {"I32", "F16"}
    codes = [entry for name, entry in found.items() if name.endswith("qweight")]
    assert sum(entry.nbytes for entry in codes) * 4 == sum(
        checkpoint.parameters[name].nbytes for name in checkpoint.parameters if name.endswith("_proj.weight")
    )


def test_our_own_reader_knows_what_the_configuration_says() -> None:
    config = {"quantization_config": quantisation_config(64)}
    assert read_quantisation(config) == Quantisation("awq", 64)


@pytest.mark.parametrize("model", FAMILIES, ids=lambda model: model.family)
def test_a_layer_is_read_whole(tmp_path: Path, model: TinyModel) -> None:
    checkpoint = open_checkpoint(write_tiny(tmp_path / "m", model))
    layer = read_layer(checkpoint, 1)
    names = {f"model.layers.1.{m}.weight" for m in layer.weights}
    names |= {f"model.layers.1.{name}" for name in layer.vectors()}
    assert names == {name for name in checkpoint.parameters if name.startswith("model.layers.1.")}
    for module, values in layer.weights.items():
        stored = checkpoint.parameters[f"model.layers.1.{module}.weight"]
        assert values.dtype == np.float32 and values.shape == stored.shape


def test_statistics_fit_the_inputs_that_layers_see(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny(tmp_path / "m", TinyModel("qwen3")))
    seen: dict[str, tuple[int, ...]] = {}
    layer = read_layer(checkpoint, 0)
    half = checkpoint.spec.head_dim // 2
    rope = np.ones((8, half), np.float32), np.zeros((8, half), np.float32)
    layer.forward(
        np.ones((8, checkpoint.spec.hidden), np.float32), rope, lambda fed, x: seen.update({fed: x.shape})
    )
    assert seen == {fed: (8, inputs.columns) for fed, inputs in no_inputs(checkpoint.spec, 32).items()}
