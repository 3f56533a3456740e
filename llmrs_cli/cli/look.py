"""What a model is and which files it has, wherever it is: on this machine, on the Hub, or in our own table.

No weights are fetched, and nothing enters the cache: of a model on the Hub the listing and config.json are
read, of one on this machine the headers of its files.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from llmrs_cli.engine.model.spec import ModelSpec
    from llmrs_cli.engine.weights.checkpoint import Checkpoint
    from llmrs_cli.hub.access import HubAccess
    from llmrs_cli.hub.names import ModelName
    from llmrs_cli.hub.shelf import Kept
    from llmrs_cli.hub.store import Preview

MAX_CONFIG = 16 << 20
"""Bytes of a config.json that is looked at."""


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file that the model needs."""

    name: str
    size: int
    here: bool


@dataclass(frozen=True, slots=True)
class Look:
    """A model, looked at."""

    source: Literal["this machine", "the Hub", "the table of names"]
    config: Mapping[str, object]
    """config.json, or the same keys; empty for a lone GGUF file on the Hub."""
    files: tuple[SeenFile, ...] = ()
    weights: int | None = None
    """Bytes of weights in the files."""
    parameters: int | None = None
    formats: tuple[str, ...] = ()
    """How weights are stored, the form of most bytes first; empty: as `config` says."""
    path: Path | None = None
    commit: str | None = None
    licence: str | None = None
    """As the file or the repository states it."""
    chat: bool | None = None
    """Whether there is a chat template; None: not known."""
    converted_from: str | None = None
    """The model that `llmrs convert` made it of."""
    quantized_from: str | None = None
    """The model that `llmrs quantize` made it of."""

    @property
    def missing(self) -> int:
        """Bytes that would be fetched."""
        return sum(file.size for file in self.files if not file.here)


def look_here(name: ModelName, access: HubAccess) -> Look | None:
    """The model as it is on this machine; None if it is not, or not all of it.

    Raises ModelError if it is here and cannot be used.
    """
    from llmrs_cli.engine.quantise.files import quantised_from
    from llmrs_cli.engine.weights.checkpoint import open_checkpoint

    path, commit = where(name, access)
    if path is None:
        return None
    checkpoint = open_checkpoint(path)
    files = [path] if path.is_file() else sorted(entry for entry in path.iterdir() if entry.is_file())
    sizes: Counter[str] = Counter()
    for parameter in checkpoint.parameters.values():
        sizes[parameter.form] += parameter.nbytes
    seen = tuple(SeenFile(file.name, file.stat().st_size, True) for file in files)
    return Look(
        "this machine",
        checkpoint.config,
        seen,
        weights=sum(sizes.values()),
        parameters=parameters(checkpoint.spec),
        formats=tuple(form for form, _ in sizes.most_common()),
        path=path,
        commit=commit,
        licence=_licence(checkpoint),
        chat=checkpoint.chat_template is not None,
        converted_from=checkpoint.converted_from,
        quantized_from=quantised_from(path),
    )


def look_online(name: ModelName, access: HubAccess) -> Look:
    """The model as the Hub has it. Raises what `store.preview` does, ModelError for a configuration we cannot run."""
    from llmrs_cli.engine.model.spec import from_config
    from llmrs_cli.hub.store import preview

    seen = preview(name, access)
    config = _fetch_config(name, access, seen)
    files = tuple(SeenFile(file.name, file.size, here) for file, here in seen.files)
    count = parameters(from_config(config)) if config else None
    return Look(
        "the Hub",
        config,
        files,
        weights=weight_bytes(files),
        parameters=count,
        commit=seen.commit,
        licence=seen.licence,
    )


def look_up(name: ModelName) -> Look | None:
    """The model as our table of names has it; None if it is not one of those."""
    from llmrs_cli.engine.model.spec import from_config
    from llmrs_cli.hub.builtin import PACKAGE

    if name.alias is None:
        return None
    files: tuple[SeenFile, ...] = ()
    if name.kind == "built-in":
        files = (SeenFile(str(name.file), PACKAGE.size, False),)
    config = name.alias.config
    count = parameters(from_config(config))
    return Look("the table of names", config, files, weights=weight_bytes(files) or None, parameters=count)


def where(name: ModelName, access: HubAccess) -> tuple[Path | None, str | None]:
    """Path and commit of a model that is on this machine; the path is None if it is not."""
    from llmrs_cli.hub.cache import CachedRepo
    from llmrs_cli.hub.shelf import built_in_path
    from llmrs_cli.hub.store import DEFAULT_REVISION

    if name.kind == "built-in":
        path = built_in_path(access.cache)
        return (path if path.is_file() else None), None
    if name.repo is None:
        return name.path, None
    cached = CachedRepo.of(access.hub, name.repo)
    commit = cached.commit(name.revision or DEFAULT_REVISION)
    return (cached.model(commit, name.file) if commit else None), commit


def pins(name: ModelName, access: HubAccess) -> list[Kept]:
    """The commits of the model's repository that are on this machine."""
    from llmrs_cli.hub.shelf import kept_commits

    return [] if name.repo is None else [kept for kept in kept_commits(access.hub, name.repo) if kept.commit]


def weight_bytes(files: tuple[SeenFile, ...]) -> int:
    """Bytes of those files that hold weights."""
    from llmrs_cli.hub.listing import is_weight

    return sum(file.size for file in files if is_weight(file.name.lower()))


def parameters(spec: ModelSpec) -> int:
    """Numbers that the model has learnt, biases aside."""
    from llmrs_cli.hub import fit

    return fit.weight_bytes(replace(spec, dtype="float16"), {}) // 2


def _fetch_config(name: ModelName, access: HubAccess, seen: Preview) -> Mapping[str, object]:
    """config.json of a repository, by way of a folder that goes again; empty if there is none or it is broken."""
    from llmrs_cli.hub.library import Library
    from llmrs_cli.hub.listing import Listing

    file = next((file for file, _ in seen.files if file.name == "config.json"), None)
    if file is None or file.size > MAX_CONFIG:
        return {}
    assert name.repo is not None, "only a repository has a preview"
    with tempfile.TemporaryDirectory(prefix="llmrs-") as folder:
        library = Library(replace(access, hub=Path(folder)))
        text = library.fetch(Listing(name.repo, seen.commit, (file,)), file).read_bytes()
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def _licence(checkpoint: Checkpoint) -> str | None:
    """What a GGUF file says of its licence."""
    from llmrs_cli.engine.weights.gguf import read_gguf

    if not checkpoint.path.is_file():
        return None
    named = read_gguf(checkpoint.path).metadata.get("general.license")
    return named[:60] if isinstance(named, str) else None
