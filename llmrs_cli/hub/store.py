"""From a model's name to its files on this machine, fetched first where needed.

The order of things, for a repository of the Hub: one request says whether the Hub can be reached, a second
which commit the revision stands at and what the files are. If it cannot be reached, a copy in the cache
starts with a warning. Small files come first, so that the caller can look at the configuration before the
first weight is fetched. A branch counts as moved in the cache only once everything is there.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmrs_cli.errors import AccessError, LlmrsError, ModelError, NetworkError, UsageError, quoted
from llmrs_cli.hub.access import HubAccess
from llmrs_cli.hub.bring import Check, bring
from llmrs_cli.hub.builtin import locate_built_in
from llmrs_cli.hub.cache import CachedRepo
from llmrs_cli.hub.download import PAUSES, Transfer, patiently
from llmrs_cli.hub.library import Library
from llmrs_cli.hub.listing import Listing, RepoFile, needed
from llmrs_cli.hub.names import ModelName
from llmrs_cli.hub.progress import Progress
from llmrs_cli.hub.reach import reach

DEFAULT_REVISION = "main"


@dataclass(frozen=True, slots=True)
class Located:
    """A model that is on this machine."""

    path: Path
    """A folder with config.json and safetensors, or a GGUF file; `open_checkpoint` takes it."""
    commit: str | None = None
    """The commit of the repository it came from."""


def locate(name: ModelName, access: HubAccess, progress: Progress, check: Check | None = None) -> Located:
    """Where the files of `name` are, after fetching what is missing.

    `check` is called before the first weight is fetched, and not at all if nothing is. Raises ModelError if
    there is no such model or it cannot be used, AccessError if the Hub refuses, NetworkError if it cannot be
    reached or is not to be and the model is not here, LlmrsError if the disk is full.
    """
    if name.kind == "built-in":
        return Located(locate_built_in(access.cache, offline=access.offline, progress=progress))
    if name.repo is None:
        assert name.path is not None, "a folder or a file"
        return Located(name.path)
    return _from_hub(name, name.repo, access, progress, check)


@dataclass(frozen=True, slots=True)
class Preview:
    """What `locate` would fetch."""

    commit: str
    files: tuple[tuple[RepoFile, bool], ...]
    """What the model needs, and whether it is here."""
    licence: str | None = None
    """As the repository states it."""

    @property
    def missing(self) -> int:
        """Bytes that would be fetched."""
        return sum(file.size for file, here in self.files if not here)


def preview(name: ModelName, access: HubAccess) -> Preview:
    """Look at a repository of the Hub without fetching; raises as `locate` does, and UsageError for others."""
    if name.repo is None:
        raise UsageError(f"{quoted(name.text)} is not a repository of the Hub.")
    if access.offline:
        raise NetworkError("Looking at a repository needs the network, and it is not to be used.")
    cached = CachedRepo.of(access.hub, name.repo)
    _, listing = _ask(access, name.repo, name.revision or DEFAULT_REVISION, PAUSES)
    files = ((file, cached.has_blob(file)) for file in needed(listing, name.file))
    return Preview(listing.commit, tuple(files), listing.licence)


def _from_hub(
    name: ModelName, repo: str, access: HubAccess, progress: Progress, check: Check | None
) -> Located:
    cached = CachedRepo.of(access.hub, repo)
    revision = name.revision or DEFAULT_REVISION
    here = _in_cache(cached, revision, name.file)
    if access.offline:
        if here is None:
            raise _missing(name)
        return here
    try:
        library, listing = _ask(access, repo, revision, () if here else PAUSES)
        files = needed(listing, name.file)
    except NetworkError as error:
        if here is None:
            raise
        progress.warn(f"{error.message} Starting from the cache (commit {str(here.commit)[:12]}).")
        return here
    except (AccessError, ModelError) as error:  # no reason to take the cache, but the user may
        if here is None:
            raise
        raise _with_cache_hint(error) from error
    bring(Transfer(library, listing, cached, threading.Event(), PAUSES), files, progress, check)
    cached.remember(revision, listing.commit)
    found = _in_cache(cached, listing.commit, name.file)
    if found is None:
        raise ModelError(f"{quoted(repo)} lacks a file of weights that its index names.")
    return found


def _in_cache(cached: CachedRepo, revision: str, file: str | None) -> Located | None:
    commit = cached.commit(revision)
    path = cached.model(commit, file) if commit else None
    return Located(path, commit) if path else None


def _missing(name: ModelName) -> NetworkError:
    return NetworkError(
        f"{quoted(name.text)} is not on this machine, or not all of it, and the network is not to be used.",
        hint="Run the command once without --offline and HF_HUB_OFFLINE.",
    )


def _with_cache_hint(error: AccessError | ModelError) -> LlmrsError:
    hint = " ".join(filter(None, [error.hint, "The copy in the cache starts with --offline."]))
    return type(error)(error.message, hint=hint)


def _ask(access: HubAccess, repo: str, revision: str, pauses: Sequence[float]) -> tuple[Library, Listing]:
    """The listing of `repo` at `revision`, and the library that gave it. A busy Hub is asked again after `pauses`."""
    reach(access, repo)
    library = Library(access)
    return library, patiently(lambda: library.listing(repo, revision), pauses)
