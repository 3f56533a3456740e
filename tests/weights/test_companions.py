"""What goes with a model when something is made of it: tokenizer, templates and licence, and never code or weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.engine.weights.companions import COPIED, copy_companions, plain_config
from tests.helpers.tiny_gguf import write_tiny_gguf
from tests.helpers.tiny_model import TinyModel, write_tiny


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_every_small_file_is_carried_byte_by_byte(tmp_path: Path, target: Path) -> None:
    source = write_tiny(tmp_path / "m")
    for name in COPIED:
        if not (source / name).exists():
            (source / name).write_bytes(f"{name}\r\n\xff".encode("latin-1"))
    (source / "chat_template.jinja").write_text("{{ messages }}")
    copy_companions(open_checkpoint(source), target)
    assert names(target) == set(COPIED)
    assert all((target / name).read_bytes() == (source / name).read_bytes() for name in COPIED)


def test_code_weights_and_strangers_stay_behind(tmp_path: Path, target: Path) -> None:
    source = write_tiny(tmp_path / "m")
    for name in ("modeling_evil.py", "pytorch_model.bin", "notes.txt", ".hidden", "llmrs.json.bak"):
        (source / name).write_text("x")
    copy_companions(open_checkpoint(source), target)
    assert names(target) == {"generation_config.json", "tokenizer.json", "tokenizer_config.json"}


def test_named_templates_are_carried(tmp_path: Path, target: Path) -> None:
    source = write_tiny(tmp_path / "m")
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    copy_companions(open_checkpoint(source), target)
    assert (target / "additional_chat_templates" / "tool_use.jinja").read_text() == "{{ tools }}"


def test_a_folder_in_the_place_of_a_file_is_left_out(tmp_path: Path, target: Path) -> None:
    source = write_tiny(tmp_path / "m")
    (source / "LICENSE").mkdir()
    copy_companions(open_checkpoint(source), target)
    assert "LICENSE" not in names(target)


def test_a_gguf_file_gives_what_it_holds(smollm2: Path, target: Path) -> None:
    checkpoint = open_checkpoint(smollm2)
    copy_companions(checkpoint, target)
    assert names(target) == {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert (target / "tokenizer.json").read_bytes() == checkpoint.tokenizer_json
    settings = json.loads((target / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert settings.items() >= checkpoint.tokenizer_config.items()
    assert (target / "chat_template.jinja").read_text() == checkpoint.chat_template


def test_a_gguf_file_without_a_tokenizer_gives_none(tmp_path: Path, target: Path) -> None:
    checkpoint = open_checkpoint(write_tiny_gguf(tmp_path / "x.gguf", TinyModel("llama")))
    copy_companions(checkpoint, target)
    assert names(target) == set()


def test_a_configuration_says_only_what_is_known(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny_gguf(tmp_path / "x.gguf", TinyModel("llama")))
    assert None in checkpoint.config.values()
    plain = plain_config(checkpoint)
    assert None not in plain.values()
    assert plain["hidden_act"] == "silu"
    assert plain.items() >= {k: v for k, v in checkpoint.config.items() if v is not None}.items()
