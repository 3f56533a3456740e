"""Opening a folder: which files count, what each gives, and what is said when one is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.engine.weights.packed import Packed4
from llmrs_cli.engine.weights.words import nibbles_along_outputs
from llmrs_cli.errors import ModelError
from tests.helpers.tiny_model import TinyModel, write_tiny
from tests.weights.test_quantised import gptq_tensors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "model")


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        open_checkpoint(path)
    return str(caught.value)


def change(path: Path, **keys: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def test_everything_that_other_rooms_read_is_there(folder: Path) -> None:
    found = open_checkpoint(folder)
    assert found.path == folder
    assert (found.spec.family, found.spec.vocab, found.spec.dtype) == ("qwen2", 320, "float16")
    assert found.tokenizer_json == (folder / "tokenizer.json").read_bytes()
    assert found.config["hidden_size"] == 128 and "eos_token_id" in found.generation
    assert found.chat_template == found.tokenizer_config["chat_template"]
    assert found.notes == ()


def test_a_folder_without_tokenizer_and_generation_files_opens(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path, TinyModel(tokenizer=False))
    (folder / "generation_config.json").unlink()
    found = open_checkpoint(folder)
    assert found.tokenizer_json is None and found.tokenizer_config == {} and found.generation == {}
    assert found.chat_template is None


def test_the_dtype_is_that_of_the_tensors_where_the_configuration_is_silent(folder: Path) -> None:
    change(folder / "config.json", torch_dtype=None)
    assert open_checkpoint(folder).spec.dtype == "float16"


def test_identity_follows_the_files(folder: Path, tmp_path: Path) -> None:
    first = open_checkpoint(folder).identity
    assert first == open_checkpoint(folder).identity
    change(folder / "config.json", rope_theta=77.0)
    assert open_checkpoint(folder).identity != first
    assert open_checkpoint(write_tiny(tmp_path / "other")).identity != first


def test_a_note_says_that_an_index_is_not_used(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("{}")
    assert len(open_checkpoint(folder).notes) == 1


# -- templates ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_template_file_goes_before_the_tokenizer_configuration(folder: Path, elsewhere: bool) -> None:
    if not elsewhere:
        change(folder / "tokenizer_config.json", chat_template=None)
    (folder / "chat_template.jinja").write_text("from file é")
    assert open_checkpoint(folder).chat_template == "from file é"


def test_named_templates_come_from_the_list_and_from_their_folder(folder: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    change(folder / "tokenizer_config.json", chat_template=named)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("c")
    found = open_checkpoint(folder)
    assert found.chat_templates == {"default": "a", "tool_use": "b", "rag": "c"}
    assert found.chat_template == "a"


@pytest.mark.parametrize("value", [7, ["a"], [{"name": "default"}], [{"template": "x"}]])
def test_a_template_that_is_no_text_is_refused(folder: Path, value: Any) -> None:
    change(folder / "tokenizer_config.json", chat_template=value)
    assert "chat_template" in refusal(folder)


def test_a_template_file_that_is_no_text_is_refused(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    assert "UTF-8" in refusal(folder)


# -- quantisers' own files ------------------------------------------------------------------------------


def test_an_old_quant_config_stands_in_for_the_section(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path, TinyModel(awq=True))
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    assert "names no quantisation" in refusal(folder)
    (folder / "quant_config.json").write_text(
        json.dumps({"zero_point": True, "q_group_size": 64, "w_bit": 4})
    )
    parameters = open_checkpoint(folder).parameters
    assert parameters["model.layers.0.mlp.up_proj.weight"].form == "4-bit AWQ, group 64"


@pytest.mark.parametrize("layout", ["gptq", "gptq_v2"])
def test_a_gptq_quantize_config_stands_in_for_the_section(tmp_path: Path, layout: str) -> None:
    """As AutoGPTQ wrote it: no method is named, and zeros are stored less one unless it says otherwise."""
    folder = write_tiny(tmp_path)
    tensors: dict[str, Any] = {}
    for name, values in load_file(folder / "model.safetensors").items():
        module, _, kind = name.rpartition(".")
        if module.endswith("_proj") and kind == "weight":
            n, k = values.shape
            layer = gptq_tensors(k, n, 64)
            tensors |= {f"{module}.{own.rpartition('.')[2]}": part for own, part in layer.items()}
        else:
            tensors[name] = values
    save_file(tensors, folder / "model.safetensors")
    section = {
        "bits": 4,
        "group_size": 64,
        "damp_percent": 0.01,
        "desc_act": False,
        "sym": False,
        "true_sequential": True,
        "model_name_or_path": None,
        "checkpoint_format": layout,
    }
    (folder / "quantize_config.json").write_text(json.dumps(section))
    name = "model.layers.0.mlp.up_proj.weight"
    aside = open_checkpoint(folder).parameters[name]
    assert aside.form == "4-bit GPTQ, group 64"
    (folder / "quantize_config.json").unlink()
    assert "names no quantisation" in refusal(folder)
    change(folder / "config.json", quantization_config=section | {"quant_method": "gptq"})
    usual = open_checkpoint(folder).parameters[name].read()
    found = aside.read()
    assert isinstance(found, Packed4) and isinstance(usual, Packed4)
    assert found.zeros is not None and usual.zeros is not None
    np.testing.assert_array_equal(found.zeros, usual.zeros)
    words = tensors[name.removesuffix("weight") + "qzeros"].view(np.uint32)
    stored = nibbles_along_outputs(words).T
    np.testing.assert_array_equal(found.zeros, stored + (layout == "gptq"))


# -- what is wrong --------------------------------------------------------------------------------------


def test_a_missing_path_and_a_folder_of_nothing_are_named(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent")
    assert "has no config.json" in refusal(tmp_path)


def test_a_single_weights_file_asks_for_its_folder(folder: Path) -> None:
    assert "model folder" in refusal(folder / "model.safetensors")


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "empty"),
        (b"{", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"<!doctype html><html>", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_a_small_file_that_is_damaged_is_named(folder: Path, name: str, content: bytes, cause: str) -> None:
    (folder / name).write_bytes(content)
    message = refusal(folder)
    assert cause in message and name in message


def test_an_enormous_configuration_is_refused_unread(folder: Path) -> None:
    with (folder / "config.json").open("wb") as file:
        file.truncate(1 << 40)
    assert "too large" in refusal(folder)


def test_a_folder_of_two_gguf_files_asks_for_one(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    assert "2 GGUF files" in refusal(tmp_path)


def test_an_untied_embedding_is_not_read_in_a_step(tmp_path: Path) -> None:
    tied = open_checkpoint(write_tiny(tmp_path / "tied", TinyModel(tied=True)))
    untied = open_checkpoint(write_tiny(tmp_path / "untied", TinyModel(tied=False)))
    assert tied.bytes_a_step == untied.bytes_a_step == sum(p.nbytes for p in tied.parameters.values())
