"""The small files of a model folder: configuration, tokenizer, templates, licence; carried to a folder made of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmrs_cli.engine.weights.checkpoint import Checkpoint

CONFIG, GENERATION = "config.json", "generation_config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
TEMPLATE, TEMPLATES = "chat_template.jinja", "additional_chat_templates"
COPIED = (
    GENERATION,
    TOKENIZER,
    TOKENIZER_CONFIG,
    TEMPLATE,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
    "NOTICE",
)
"""Files that are as true of what is made of a model."""


def copy_companions(checkpoint: Checkpoint, folder: Path) -> None:
    """Tokenizer, templates and licence as they were; of a GGUF file what it holds of them."""
    if checkpoint.path.is_dir():
        for name in COPIED:
            if (checkpoint.path / name).is_file():
                shutil.copyfile(checkpoint.path / name, folder / name)
        if (checkpoint.path / TEMPLATES).is_dir():
            shutil.copytree(checkpoint.path / TEMPLATES, folder / TEMPLATES)
        return
    if checkpoint.tokenizer_json is not None:
        (folder / TOKENIZER).write_bytes(checkpoint.tokenizer_json)
        fast = {"tokenizer_class": "PreTrainedTokenizerFast"}
        write_json(folder / TOKENIZER_CONFIG, fast | checkpoint.tokenizer_config)
    if checkpoint.chat_template is not None:
        (folder / TEMPLATE).write_text(checkpoint.chat_template, encoding="utf-8")


def plain_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """config.json without what is not said."""
    config = {key: value for key, value in checkpoint.config.items() if value is not None}
    return {"hidden_act": "silu"} | config


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """As people like to read it."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
