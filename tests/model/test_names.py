"""Stored tensor names become ours; a specification says which must exist and in what shape."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from llmrs_cli.engine.model import names
from llmrs_cli.engine.model.spec import from_config
from tests.model.configs import config

CHECKPOINTS = Path(__file__).parent.parent / "data" / "golden" / "checkpoints"
DENSE = [path for path in sorted(CHECKPOINTS.iterdir()) if "awq" not in path.name]


@pytest.mark.parametrize("folder", DENSE, ids=lambda path: path.name)
def test_expected_names_and_shapes_are_those_of_real_checkpoints(folder: Path) -> None:
    spec = from_config(json.loads((folder / "config.json").read_text()))
    stored: dict[str, tuple[int, ...]] = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "np") as tensors:
            stored |= {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    assert names.expected_shapes(spec) == {k: v for k, v in stored.items() if not names.is_ignored(k, spec)}


def test_a_tied_head_needs_no_tensor_and_its_copy_is_ignored() -> None:
    tied = from_config(config(tie_word_embeddings=True))
    assert names.HEAD not in names.expected_shapes(tied)
    assert names.is_ignored(names.HEAD, tied)
    loose = from_config(config())
    assert names.expected_shapes(loose)[names.HEAD] == (320, 64)
    assert not names.is_ignored(names.HEAD, loose)


def test_stored_rotary_buffers_are_ignored() -> None:
    spec = from_config(config())
    assert names.is_ignored("model.layers.0.self_attn.rotary_emb.inv_freq", spec)
    assert not names.is_ignored("model.layers.0.self_attn.q_proj.bias", spec)


@pytest.mark.parametrize(
    "prefix", ["", "module.", "language_model.", "base_model.model.", "module._orig_mod."]
)
@pytest.mark.parametrize(
    "name", [names.EMBEDDING, names.HEAD, names.NORM, names.in_layer(3, "mlp.up_proj.qweight")]
)
def test_wrappers_are_stripped(prefix: str, name: str) -> None:
    assert names.from_hf(prefix + name) == name


@pytest.mark.parametrize("name", [names.EMBEDDING, names.NORM, names.in_layer(0, names.MLP_NORM)])
def test_a_base_model_without_its_prefix_is_recognised(name: str) -> None:
    assert names.from_hf(name.removeprefix("model.")) == name
    assert names.from_hf(name.replace("model.", "model.language_model.", 1)) == name


def test_names_of_no_table_are_left_alone() -> None:
    assert names.from_hf("transformer.h.0.attn.weight") == "transformer.h.0.attn.weight"
    assert names.from_gguf("blk.0.ssm_in.weight") == "blk.0.ssm_in.weight"
    assert names.from_gguf("rope_freqs.weight") == "rope_freqs.weight"
    assert names.from_gguf("output") == "output"


def test_short_names_cover_everything_that_a_family_expects() -> None:
    top = ["token_embd.weight", "output_norm.weight", "output.weight"]
    parts = (
        "attn_norm attn_q attn_k attn_v attn_output ffn_norm ffn_gate ffn_up ffn_down attn_q_norm attn_k_norm"
    )
    layers = [f"blk.{layer}.{part}.weight" for layer in range(4) for part in parts.split()]
    spec = from_config(config("Qwen3ForCausalLM", head_dim=16))
    assert {names.from_gguf(name) for name in top + layers} == set(names.expected_shapes(spec))
    assert names.from_gguf("blk.2.attn_q.bias") == "model.layers.2.self_attn.q_proj.bias"
