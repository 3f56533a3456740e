"""A quantised model: its files follow the public format, it computes what its source does, nearly, and fits in little memory."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.engine.forced import load
from llmrs_cli.engine.model.rope import rope_tables
from llmrs_cli.engine.quantise.files import awq_tensors
from llmrs_cli.engine.quantise.layer import LINEARS, read_layer
from llmrs_cli.engine.quantise.model import Recipe, check_source, choose_group, quantise_model
from llmrs_cli.engine.quantise.rounding import Rounded
from llmrs_cli.engine.verify import forced_logits
from llmrs_cli.engine.weights.checkpoint import Checkpoint, open_checkpoint
from llmrs_cli.errors import ModelError, UsageError
from tests.helpers.tiny_gguf import write_tiny_gguf
from tests.helpers.tiny_model import TinyModel, write_tiny

IDS = tuple(int(n) for n in np.random.default_rng(1).integers(0, 300, 48))
WINDOWS = [IDS[:24], IDS[24:]]
FAMILIES = [TinyModel("llama", tied=True), TinyModel("qwen2"), TinyModel("qwen3")]


def quantised(source: Path, target: Path, *, plain: bool = False, group: int = 32) -> list[float]:
    target.mkdir()
    return list(quantise_model(open_checkpoint(source), target, WINDOWS, Recipe(group, plain)))


def logits(path: Path) -> NDArray[np.float32]:
    return forced_logits(load(open_checkpoint(path), ReferenceBackend()), IDS, 1)


def with_outliers(folder: Path) -> Path:
    """Some channels of every norm are much larger, as in real models."""
    tensors = dict(load_file(folder / "model.safetensors"))
    for name in tensors:
        if name.endswith("layernorm.weight"):
            tensors[name][[3, 50, 90]] *= 20
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_outliers(write_tiny(tmp_path_factory.mktemp("source"), TinyModel("qwen2")))


@pytest.fixture(scope="module")
def result(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("result") / "awq"
    quantised(source, target)
    return target


# -- the format, read by its public description ---------------------------------------------------------


def plain_reader(tensors: dict[str, NDArray[Any]], module: str, group: int) -> NDArray[np.float64]:
    """(K, N) weights, code by code: bits 4i … 4i + 3 of a word hold column 0 2 4 6 1 3 5 7 of its eight."""
    words = tensors[f"{module}.qweight"].view(np.uint32)
    zeros, scales = tensors[f"{module}.qzeros"].view(np.uint32), tensors[f"{module}.scales"]
    k, eights = words.shape
    out = np.empty((k, 8 * eights))
    for place, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
        code, zero = ((part >> np.uint32(4 * place)) & np.uint32(15) for part in (words, zeros))
        for row in range(k):
            step = scales[row // group, column::8].astype(np.float64)
            out[row, column::8] = (code[row].astype(int) - zero[row // group].astype(int)) * step
    return out


def test_a_reader_of_the_public_format_finds_the_weights_that_we_run(result: Path) -> None:
    tensors = load_file(result / "model.safetensors")
    checkpoint = open_checkpoint(result)
    for module in ("model.layers.0.self_attn.k_proj", "model.layers.1.mlp.down_proj"):
        found = plain_reader(tensors, module, 32)
        ours = checkpoint.parameters[f"{module}.weight"].read().dequantise()
        np.testing.assert_allclose(found.T, ours, rtol=1e-6)


def test_tensors_have_the_names_kinds_and_shapes_of_the_format(result: Path) -> None:
    tensors = load_file(result / "model.safetensors")
    kinds = {name: (values.dtype.name, values.shape) for name, values in tensors.items()}
    layer = "model.layers.1."
    expected = {
        f"{layer}self_attn.v_proj.qweight": ("int32", (128, 8)),
        f"{layer}self_attn.v_proj.qzeros": ("int32", (4, 8)),
        f"{layer}self_attn.v_proj.scales": ("float16", (4, 64)),
        f"{layer}self_attn.v_proj.bias": ("float16", (64,)),
        f"{layer}mlp.down_proj.qweight": ("int32", (256, 16)),
        f"{layer}input_layernorm.weight": ("float16", (128,)),
        "model.embed_tokens.weight": ("float16", (320, 128)),
        "lm_head.weight": ("float16", (320, 128)),
    }
    assert {name: kinds[name] for name in expected} == expected
    assert len(kinds) == 3 + 2 * (2 + 3 + 7 * 3)


def test_the_configuration_names_the_quantisation_to_the_letter(source: Path, result: Path) -> None:
    config = json.loads((result / "config.json").read_text())
    assert config.pop("quantization_config") == {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 32,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": None,
    }
    assert config == json.loads((source / "config.json").read_text()) | {"torch_dtype": "float16"}
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (result / name).read_bytes() == (source / name).read_bytes()


def test_packed_words_are_read_back() -> None:
    rng = np.random.default_rng(0)
    codes, zeros = (rng.integers(0, 16, shape).astype(np.uint8) for shape in ((16, 64), (16, 2)))
    scales = rng.uniform(1, 2, (16, 2)).astype(np.float16)
    tensors = {f"x.{piece}": values for piece, values in awq_tensors(Rounded(codes, zeros, scales)).items()}
    np.testing.assert_allclose(plain_reader(tensors, "x", 32).T, Rounded(codes, zeros, scales).dequantise())


# -- what it computes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("model", FAMILIES, ids=lambda model: model.family)
def test_layers_in_float_compute_what_the_decoder_does(tmp_path: Path, model: TinyModel) -> None:
    checkpoint = open_checkpoint(write_tiny(tmp_path / "m", model))
    x = checkpoint.parameters["model.embed_tokens.weight"].read().rows(np.array(IDS[:-1])).dequantise()
    cos, sin = rope_tables(checkpoint.spec, len(IDS))
    for number in range(checkpoint.spec.layers):
        x = x + read_layer(checkpoint, number).forward(x, (cos, sin))
    loaded = load(checkpoint, ReferenceBackend())
    normed = loaded.backend.rms_norm(x, loaded.model.norm, loaded.model.eps)
    ours = loaded.backend.linear(normed, loaded.model.head)
    right = forced_logits(loaded, IDS, 1)
    assert np.linalg.norm(ours - right) < 1e-5 * np.linalg.norm(right)


@pytest.mark.parametrize(
    ("model", "plain"),
    [*((model, False) for model in FAMILIES), (FAMILIES[0], True)],
    ids=lambda value: getattr(value, "family", str(value)),
)
def test_every_family_stays_close_to_its_source(tmp_path: Path, model: TinyModel, plain: bool) -> None:
    folder = write_tiny(tmp_path / "m", model)
    errors = quantised(folder, tmp_path / "q", plain=plain)
    assert len(errors) == 2 and all(0.001 < error < 0.3 for error in errors)
    right, ours = logits(folder), logits(tmp_path / "q")
    assert np.linalg.norm(ours - right) < 0.35 * np.linalg.norm(right)
    assert ("lm_head.weight" in load_file(tmp_path / "q" / "model.safetensors")) != model.tied


def test_scales_change_nothing_but_what_rounding_does(source: Path) -> None:
    """With codes so fine that rounding is nothing, the scaled layer is the layer: undo the rounding by hand."""
    checkpoint = open_checkpoint(source)
    layer = read_layer(checkpoint, 0)
    x = np.random.default_rng(3).standard_normal((20, 128)).astype(np.float32)
    rope = rope_tables(checkpoint.spec, 20)
    right = layer.forward(x, rope)
    rng = np.random.default_rng(4)

    def some(count: int) -> NDArray[np.float32]:
        return rng.uniform(0.2, 5, count).astype(np.float32)

    layer._scale_norm("input_layernorm.weight", LINEARS[:3], some(128))
    layer._scale_norm("post_attention_layernorm.weight", LINEARS[4:6], some(128))
    heads = np.repeat(some(64).reshape(2, 1, 32), 2, axis=1).reshape(-1)
    layer._scale_rows("self_attn.v_proj", "self_attn.o_proj", heads, 2)
    layer._scale_rows("mlp.up_proj", "mlp.down_proj", some(256), 1)
    ours = layer.forward(x, rope)
    assert np.linalg.norm(ours - right) < 1e-5 * np.linalg.norm(right)


def test_norms_of_zero_or_too_small_for_float16_keep_their_channel(source: Path) -> None:
    layer = read_layer(open_checkpoint(source), 0)
    norm = layer.norms["input_layernorm.weight"]
    norm[0], norm[1] = 0.0, 1e-6
    factors = layer._scale_norm("input_layernorm.weight", LINEARS[:1], np.full(128, 1000, np.float32))
    assert factors[:2].tolist() == [1.0, 1.0]
    assert layer.norms["input_layernorm.weight"][1] == np.float32(1e-6)


def test_activation_aware_scales_lose_less_than_plain_rounding(
    source: Path, result: Path, tmp_path: Path
) -> None:
    plain = quantised(source, tmp_path / "rtn", plain=True)
    aware = quantised(source, tmp_path / "awq")
    assert all(a < 0.9 * p for a, p in zip(aware, plain, strict=True))
    right = logits(source)
    assert np.linalg.norm(logits(result) - right) < 0.9 * np.linalg.norm(logits(tmp_path / "rtn") - right)


def test_a_gguf_file_becomes_a_folder_with_its_tokenizer_and_template(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "x.gguf", TinyModel("llama"))
    quantised(path, tmp_path / "q")
    source, found = open_checkpoint(path), open_checkpoint(tmp_path / "q")
    assert found.tokenizer_json == source.tokenizer_json
    assert found.chat_template == source.chat_template
    assert found.spec.eos_ids == source.spec.eos_ids
    assert None not in found.config.values()


@pytest.mark.parametrize("vocab", [320, 60_000])
@pytest.mark.parametrize("tied", [True, False])
def test_a_model_takes_the_memory_of_two_layers(tmp_path: Path, tied: bool, vocab: int) -> None:
    """Float32 copies of two layers at most from the first step on, however many layers and tokens there are."""
    model = TinyModel("llama", layers=3, ffn=1024, tokenizer=False, tied=tied, vocab=vocab)
    checkpoint = open_checkpoint(write_tiny(tmp_path / "m", model))
    layer = sum(checkpoint.parameters[f"model.layers.0.{m}.weight"].nbytes for m in LINEARS) * 2
    (tmp_path / "q").mkdir()
    tracemalloc.start()
    try:
        list(quantise_model(checkpoint, tmp_path / "q", [IDS], Recipe(32, False)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * layer + (2 << 20)


@pytest.mark.parametrize("model", [TinyModel("llama", tied=True), TinyModel("qwen2")], ids=["tied", "untied"])
def test_slabs_of_any_height_give_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: TinyModel
) -> None:
    folder = write_tiny(tmp_path / "m", model)
    errors = quantised(folder, tmp_path / "whole")
    monkeypatch.setattr("llmrs_cli.engine.quantise.model.SLAB", 7 * model.hidden + 1)
    assert quantised(folder, tmp_path / "slabs") == errors
    first, second = (tmp_path / name / "model.safetensors" for name in ("whole", "slabs"))
    assert first.read_bytes() == second.read_bytes()


# -- what cannot be -------------------------------------------------------------------------------------


def opened(folder: Path, **changes: Any) -> Checkpoint:
    return open_checkpoint(write_tiny(folder, TinyModel(**changes)))


def test_a_model_that_is_quantised_already_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is quantised already"):
        check_source(opened(tmp_path / "m", awq=True))


def test_a_model_that_lacks_a_tensor_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "m")
    tensors = dict(load_file(folder / "model.safetensors"))
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match="1 missing"):
        check_source(open_checkpoint(folder))


def test_the_largest_group_that_fits_is_the_default(tmp_path: Path) -> None:
    assert choose_group(opened(tmp_path / "a"), None) == 128
    narrow = opened(tmp_path / "b", hidden=96, ffn=192)
    assert choose_group(narrow, None) == 32
    with pytest.raises(UsageError, match="--group-size 64 does not divide") as caught:
        choose_group(narrow, 64)
    assert caught.value.hint == "32 would."


@pytest.mark.parametrize(
    ("changes", "message"), [({"ffn": 260}, "260 outputs"), ({"hidden": 80, "ffn": 240}, "no multiple of 32")]
)
def test_shapes_that_the_format_cannot_hold_are_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        choose_group(opened(tmp_path / "m", **changes), None)


@pytest.mark.parametrize("value", [1e6, np.nan])
@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.1.mlp.up_proj.weight"])
def test_values_that_float16_cannot_hold_are_refused_by_name(tmp_path: Path, name: str, value: float) -> None:
    folder = write_tiny(tmp_path / "m", TinyModel(dtype=np.float32))
    tensors = dict(load_file(folder / "model.safetensors"))
    tensors[name].flat[0] = value
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=f"'{name}' holds values that float16 cannot"):
        quantised(folder, tmp_path / "q")
