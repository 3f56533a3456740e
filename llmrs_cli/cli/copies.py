"""Copies that `llmrs convert` keeps in our cache: of which model, how large, and which of them nobody can find any more.

A copy is keyed by the identity of its source. It is found by naming that, so it is of no use when the source has
gone or has changed. Folders that were named with -o are their owner's, and are not looked at.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llmrs_cli.cli.models import CONVERTED, model_named
from llmrs_cli.config import Directories
from llmrs_cli.errors import LlmrsError, ModelError

if TYPE_CHECKING:
    from llmrs_cli.hub.leftovers import Leftover
    from llmrs_cli.hub.names import ModelName

_KEY = re.compile(r"[0-9a-f]{16}")
_UNFINISHED = re.compile(r"\.[0-9a-f]{16}\.part-.+")


@dataclass(frozen=True, slots=True)
class Copy:
    """One converted copy."""

    source: str | None
    """What the model was called, an absolute path for a folder or file; None: damaged, or of another version."""
    path: Path
    size: int
    """Bytes of its files."""

    @property
    def key(self) -> str:
        return self.path.name


def kept_copies(places: Directories) -> list[Copy]:
    """Every copy in our cache, by the name of its source."""
    from llmrs_cli.hub.files import folder_bytes

    folders = [path for path in _folders(places) if _KEY.fullmatch(path.name)]
    found = [Copy(_source_of(path), path, folder_bytes(path)) for path in folders]
    return sorted(found, key=lambda copy: (copy.source or "", copy.key))


def _source_of(folder: Path) -> str | None:
    """What the manifest says; None if there is none that we can use."""
    from llmrs_cli.engine.weights.manifest import (
        read_manifest,
    )  # with NumPy, which a list of models needs not

    with suppress(ModelError):
        manifest = read_manifest(folder)
        return None if manifest is None else manifest.source
    return None


def copies_of(name: ModelName, places: Directories) -> list[Copy]:
    """The copies of a model: of all commits of its repository, of a folder or file as it is."""
    copies = kept_copies(places)
    if not copies:
        return []
    key = _key_of_named(name, places)
    return [copy for copy in copies if copy.key == key or _is_of(copy, name)]


def remove_copy(copy: Copy) -> None:
    """Remove it; raises LlmrsError if the system does not let us."""
    try:
        shutil.rmtree(copy.path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise LlmrsError(f"A converted copy cannot be removed: {error.strerror}.") from error


def all_leftovers(places: Directories, *, now: float | None = None) -> list[Leftover]:
    """What `hub.leftovers` finds, and copies and parts of copies that can go as well."""
    from llmrs_cli.hub.leftovers import SETTLED, Leftover, find_leftovers

    before = (time.time() if now is None else now) - SETTLED
    found = find_leftovers(places.hub, places.cache, now=now)
    found += [Leftover(copy.path, copy.size, why) for copy, why in _useless(places)]
    return found + [
        Leftover(path, size, "unfinished conversion")
        for path, size, last in _unfinished(places)
        if last < before
    ]


def _useless(places: Directories) -> Iterator[tuple[Copy, str]]:
    from llmrs_cli.hub.shelf import kept_models

    copies = kept_copies(places)
    if not copies:
        return
    known = {_key_of(kept.path) for kept in kept_models(places.hub, places.cache) if kept.path is not None}
    for copy in copies:
        if copy.source is None:
            yield copy, "unusable converted copy"
        elif copy.key not in known and copy.key != _key_of_source(copy.source, places):
            yield copy, "converted copy without its model"


def _unfinished(places: Directories) -> Iterator[tuple[Path, int, float]]:
    """Parts of copies: path, bytes and the time of the last change."""
    from llmrs_cli.hub.files import folder_bytes

    for path in _folders(places):
        if _UNFINISHED.fullmatch(path.name):
            times = [entry.stat().st_mtime for entry in (path, *path.iterdir())]
            yield path, folder_bytes(path), max(times)


def _folders(places: Directories) -> list[Path]:
    home = places.cache / CONVERTED
    return sorted(path for path in home.iterdir() if path.is_dir()) if home.is_dir() else []


def _is_of(copy: Copy, name: ModelName) -> bool:
    """Whether the names mean one repository, one folder or one file."""
    if copy.source is None:
        return False
    if name.path is not None:
        return copy.source == str(name.path.absolute())
    with suppress(LlmrsError):
        return (source := model_named(copy.source)).kind == name.kind and source.repo == name.repo
    return False


def _key_of_source(source: str, places: Directories) -> str | None:
    with suppress(LlmrsError):
        return _key_of_named(model_named(source), places)
    return None


def _key_of_named(name: ModelName, places: Directories) -> str | None:
    """The key of a model that is on this machine; None if it is not, or cannot be opened."""
    from llmrs_cli.cli.look import where
    from llmrs_cli.hub.access import HubAccess

    path, _ = where(name, HubAccess(places.hub, places.cache, offline=True))
    return None if path is None else _key_of(path)


def _key_of(path: Path) -> str | None:
    from llmrs_cli.engine.weights.checkpoint import open_checkpoint
    from llmrs_cli.engine.weights.convert import key_of

    with suppress(ModelError):
        return key_of(open_checkpoint(path))
    return None
