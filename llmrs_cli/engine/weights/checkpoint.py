"""A model on disk, opened: its specification, its parameters by our names, its tokenizer and templates.

`open_checkpoint` takes a folder in the Hugging Face layout or a GGUF file. Opening reads headers and
small files only; weights are read by `load`. Nothing from a model is ever imported or evaluated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from llmrs_cli.engine.model import names
from llmrs_cli.engine.model.spec import Dtype, ModelSpec, from_config
from llmrs_cli.engine.weights.companions import (
    CONFIG,
    GENERATION,
    TEMPLATE,
    TEMPLATES,
    TOKENIZER,
    TOKENIZER_CONFIG,
)
from llmrs_cli.engine.weights.files import DataFile, read_object, read_small, shown
from llmrs_cli.engine.weights.gguf import read_gguf
from llmrs_cli.engine.weights.gguf_config import gguf_config, gguf_parameters
from llmrs_cli.engine.weights.gguf_tokenizer import chat_templates, tokenizer_config, tokenizer_json
from llmrs_cli.engine.weights.gguf_vocabulary import read_vocabulary
from llmrs_cli.engine.weights.manifest import read_manifest
from llmrs_cli.engine.weights.parameters import Parameter
from llmrs_cli.engine.weights.pieces import converted_parameters
from llmrs_cli.engine.weights.quantisation import read_quantisation
from llmrs_cli.engine.weights.quantised import build_parameters
from llmrs_cli.engine.weights.store import Tensors, read_folder
from llmrs_cli.errors import ModelError, quoted

OLD_AWQ_CONFIGS = ("quant_config.json", "quantize_config.json")
"""Where quantisers once wrote what config.json says today."""


@dataclass(frozen=True)
class Checkpoint:
    """A model that can be loaded."""

    path: Path
    spec: ModelSpec
    config: dict[str, Any]
    """config.json, or the same keys from GGUF metadata."""
    generation: dict[str, Any]
    """generation_config.json, or {}."""
    parameters: Mapping[str, Parameter]
    """Every stored parameter by our name (see `model.names`)."""
    tokenizer_json: bytes | None
    """A Hugging Face tokenizer.json; None: the model runs on token ids alone."""
    tokenizer_config: dict[str, Any]
    chat_templates: Mapping[str, str]
    """By name; the usual one is "default"."""
    identity: str
    """Hexadecimal key of these very files: names, sizes, times, configuration."""
    notes: tuple[str, ...] = ()
    """What the user should know about how it was opened; for stderr."""
    converted_from: str | None = None
    """The model that a converted checkpoint was made of."""

    @property
    def chat_template(self) -> str | None:
        """The default chat template."""
        return self.chat_templates.get("default")

    @property
    def bytes_a_step(self) -> int:
        """Bytes of weights that a decode step reads: all, but of an untied embedding only a row."""
        total = sum(parameter.nbytes for parameter in self.parameters.values())
        return total if self.spec.tied_head else total - self.parameters[names.EMBEDDING].nbytes


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a model folder or a .gguf file. Raises ModelError with one sentence if it cannot be run."""
    if path.is_dir():
        if (path / CONFIG).exists():
            return _open_folder(path)
        return _open_gguf(_lone_gguf(path))
    if path.suffix.lower() == ".gguf" or not path.exists():
        return _open_gguf(path)
    raise ModelError(f"{shown(path)} is no model.", hint="Name a model folder or a .gguf file.")


def _lone_gguf(folder: Path) -> Path:
    found = sorted(folder.glob("*.gguf"))
    if len(found) == 1:
        return found[0]
    if found:
        raise ModelError(f"{shown(folder)} holds {len(found)} GGUF files.", hint="Name one of them.")
    raise ModelError(f"{shown(folder)} has no {CONFIG}.", hint="The folder may be incomplete or no model.")


def _open_gguf(path: Path) -> Checkpoint:
    gguf = read_gguf(path)
    config = gguf_config(gguf)
    spec = from_config(config)
    parameters = gguf_parameters(gguf, spec)
    vocabulary = read_vocabulary(gguf.metadata)
    return Checkpoint(
        path=path,
        spec=replace(spec, dtype=stored_dtype(parameters)),
        config=config,
        generation={},
        parameters=parameters,
        tokenizer_json=tokenizer_json(vocabulary) if vocabulary else None,
        tokenizer_config=tokenizer_config(vocabulary) if vocabulary else {},
        chat_templates=chat_templates(gguf.metadata),
        identity=identity_of([path]),
    )


def _open_folder(folder: Path) -> Checkpoint:
    manifest = read_manifest(folder)
    config, generation = read_config(folder)
    spec = from_config(config, generation)
    notes: list[str] = []
    if manifest is not None:
        parameters, identity = converted_parameters(folder, manifest), manifest.seal()
    else:
        stored, notes = read_folder(folder)
        parameters = build_parameters(_by_our_names(stored), read_quantisation(config))
        files = {tensor.file.path for tensor in stored.values()}
        identity = identity_of([folder / CONFIG, *sorted(files)])
    tokenizer = folder / TOKENIZER
    settings = _optional(folder / TOKENIZER_CONFIG)
    return Checkpoint(
        path=folder,
        spec=replace(spec, dtype=spec.dtype or stored_dtype(parameters)),
        config=config,
        generation=generation,
        parameters=parameters,
        tokenizer_json=read_small(tokenizer) if tokenizer.exists() else None,
        tokenizer_config=settings,
        chat_templates=_chat_templates(folder, settings),
        identity=identity,
        notes=tuple(notes),
        converted_from=None if manifest is None else manifest.source,
    )


def read_config(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json (with a quantiser's own file folded in) and generation_config.json."""
    config = read_object(folder / CONFIG)
    for name in OLD_AWQ_CONFIGS:
        if "quantization_config" not in config and (folder / name).exists():
            section = read_object(folder / name)
            config["quantization_config"] = {
                "quant_method": "awq" if "w_bit" in section else "gptq"
            } | section
    return config, _optional(folder / GENERATION)


def _optional(path: Path) -> dict[str, Any]:
    return read_object(path) if path.exists() else {}


def _by_our_names(stored: Tensors) -> Tensors:
    ours = {names.from_hf(name): tensor for name, tensor in stored.items()}
    if len(ours) < len(stored):
        raise ModelError(
            f"Two tensors of the model differ only in their prefix: {len(stored) - len(ours)} clashes."
        )
    return ours


def stored_dtype(parameters: Mapping[str, Parameter]) -> Dtype | None:
    """The dtype of the embedding, where that is plain."""
    form = parameters[names.EMBEDDING].form if names.EMBEDDING in parameters else None
    return next((dtype for dtype in get_args(Dtype) if dtype == form), None)


def _chat_templates(folder: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """Templates of tokenizer_config.json, overridden by files of their own."""
    found = _inline_templates(tokenizer_config.get("chat_template"))
    if (folder / TEMPLATES).is_dir():
        found |= {path.stem: _template(path) for path in sorted((folder / TEMPLATES).glob("*.jinja"))}
    if (folder / TEMPLATE).exists():
        found["default"] = _template(folder / TEMPLATE)
    return found


def _inline_templates(value: object) -> dict[str, str]:
    """One template, or a list of {name, template}."""
    entries = value if isinstance(value, list) else [{"name": "default", "template": value}] if value else []
    found = {}
    for entry in entries:
        name, template = (
            (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
        )
        if not isinstance(name, str) or not isinstance(template, str):
            raise ModelError(f"chat_template in {TOKENIZER_CONFIG} must be text, not {quoted(value)}.")
        found[name] = template
    return found


def _template(path: Path) -> str:
    try:
        return read_small(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{shown(path)} is not UTF-8 text.") from error


def identity_of(files: list[Path]) -> str:
    """A key that changes with any of the files: the hash of their names, sizes and times."""
    key = hashlib.sha256()
    for path in files:
        file = DataFile.open(path)
        key.update(f"{path.name}\0{file.size}\0{file.stamp[2]}\0".encode())
    return key.hexdigest()
