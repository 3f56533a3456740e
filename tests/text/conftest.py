"""Tokenizers and templates that the tests of this room share; the real ones take a second to load."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from llmrs_cli.text.template import ChatTemplate
from llmrs_cli.text.tokenizer import Tokenizer
from tests.helpers.byte_tokenizer import byte_tokenizer_json, sp_tokenizer_json, tokenizer_config


def _real(folder: Path) -> tuple[Tokenizer, ChatTemplate]:
    config: dict[str, Any] = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer = Tokenizer(gzip.decompress((folder / "tokenizer.json.gz").read_bytes()), config)
    return tokenizer, ChatTemplate({"default": config["chat_template"]}, tokenizer.names)


@pytest.fixture(scope="session")
def real(data: Path) -> dict[str, tuple[Tokenizer, ChatTemplate]]:
    """Qwen2.5 and Llama-3.2, each with its chat template."""
    return {name: _real(data / "tokenizers" / name) for name in ("qwen2.5", "llama3.2")}


@pytest.fixture(scope="session")
def qwen(real: dict[str, tuple[Tokenizer, ChatTemplate]]) -> Tokenizer:
    return real["qwen2.5"][0]


@pytest.fixture(scope="session")
def llama(real: dict[str, tuple[Tokenizer, ChatTemplate]]) -> Tokenizer:
    return real["llama3.2"][0]


@pytest.fixture(scope="session")
def t_byte() -> Tokenizer:
    return Tokenizer(byte_tokenizer_json(), tokenizer_config())


@pytest.fixture(scope="session")
def t_sp() -> Tokenizer:
    return Tokenizer(sp_tokenizer_json())


@pytest.fixture(scope="session", params=["qwen2.5", "llama3.2", "byte", "sp"])
def any_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """Each of them in turn."""
    name = {"qwen2.5": "qwen", "llama3.2": "llama", "byte": "t_byte", "sp": "t_sp"}[request.param]
    tokenizer: Tokenizer = request.getfixturevalue(name)
    return tokenizer
