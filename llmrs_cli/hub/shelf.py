"""The models on this machine: listed, shown, checked and removed. Reads folders only; nothing goes online.

What other Hub programs have fetched counts as much as what we have. Several commits of one repository may be
kept; they share the content that they have in common.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from llmrs_cli.errors import LlmrsError, quoted
from llmrs_cli.hub.aliases import ALIASES, BUILT_IN
from llmrs_cli.hub.cache import CachedRepo
from llmrs_cli.hub.files import folder_bytes, size_of
from llmrs_cli.hub.listing import RepoFile, is_commit

_FOLDER = re.compile(r"models--([A-Za-z0-9._-]+?)--([A-Za-z0-9._-]+)")


@dataclass(frozen=True, slots=True)
class Kept:
    """One commit of a repository, or the built-in model, on this machine."""

    name: str
    """Alias where there is one, else owner/repo."""
    repo: str | None
    """None: the built-in model."""
    commit: str | None
    revisions: tuple[str, ...]
    """Branches and tags that stand at this commit."""
    path: Path | None
    """What `open_checkpoint` takes; None: not all of it is here, or it is no model of ours."""
    size: int
    """Bytes of its files; content that two commits share counts for both."""
    partial: int
    """Bytes of unfinished downloads of the repository."""


def kept_models(hub: Path, cache: Path) -> list[Kept]:
    """Everything on this machine, the built-in model first, then by name."""
    found = [entry for repo in repos_in(hub) for entry in kept_commits(hub, repo)]
    return [*_built_in(cache), *sorted(found, key=lambda entry: (entry.name, entry.commit or ""))]


def kept_commits(hub: Path, repo: str) -> Iterator[Kept]:
    """The commits of `repo` that are here; one entry without a commit if only a part of a download is."""
    cached = CachedRepo.of(hub, repo)
    name = next(
        (alias.name for alias in ALIASES.values() if alias.repo == repo and alias.name != BUILT_IN), repo
    )
    partial = sum(size_of(path) for path in cached.unfinished())
    refs = _refs(cached)
    commits = sorted(path.name for path in _folders(cached.folder / "snapshots") if is_commit(path.name))
    for commit in commits:
        revisions = tuple(sorted(name for name, at in refs.items() if at == commit))
        size = sum(size_of(path) for path in _files(cached.snapshot(commit)))
        yield Kept(name, repo, commit, revisions, cached.model(commit), size, partial)
    if partial and not commits:
        yield Kept(name, repo, None, (), None, 0, partial)


def completions(hub: Path, cache: Path, prefix: str) -> list[str]:
    """Names that begin with `prefix`: of models that are here, then of all aliases."""
    here = [entry.name for entry in kept_models(hub, cache) if entry.path is not None]
    names = dict.fromkeys([*here, *ALIASES])
    return [name for name in names if name.startswith(prefix)]


def remove_repo(hub: Path, repo: str) -> int:
    """Remove every commit and partial download of `repo`; returns the bytes that this freed.

    Raises LlmrsError if the folder is not one of the cache's own or cannot be removed.
    """
    cached = CachedRepo.of(hub, repo)
    freed = folder_bytes(cached.folder)
    if cached.folder.is_symlink():
        raise LlmrsError(
            f"{quoted(str(cached.folder), 200)} is a link to somewhere else.", hint="Remove it by hand."
        )
    for folder in (cached.folder, cached.lock_folder):
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise LlmrsError(f"Cannot remove {quoted(str(folder), 200)}: {error.strerror}.") from error
    return freed


def damaged_files(hub: Path, repo: str, commit: str) -> Iterator[tuple[str, bool]]:
    """Each file of a kept commit, and whether its content is no longer what the Hub listed.

    The cache names content by its hash, so this needs no network.
    """
    snapshot = CachedRepo.of(hub, repo).snapshot(commit)
    for path in _files(snapshot):
        content = path.resolve()
        if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", content.name):
            file = RepoFile(path.name, size_of(content), content.name)
            yield path.relative_to(snapshot).as_posix(), not file.is_content_of(content)


def built_in_path(cache: Path) -> Path:
    """Where the built-in model lies, or will."""
    file = ALIASES[BUILT_IN].file
    assert file is not None, "the built-in model is one file"
    return cache / "models" / file


def _built_in(cache: Path) -> Iterator[Kept]:
    path = built_in_path(cache)
    if path.is_file():
        yield Kept(BUILT_IN, None, None, (), path, size_of(path), 0)


def repos_in(hub: Path) -> Iterator[str]:
    """The repositories of models that have a folder in the cache."""
    for folder in _folders(hub):
        if match := _FOLDER.fullmatch(folder.name):
            yield f"{match[1]}/{match[2]}"


def _refs(cached: CachedRepo) -> dict[str, str | None]:
    """Branches and tags, and the commits that they stand at."""
    folder = cached.folder / "refs"
    names = [path.relative_to(folder).as_posix() for path in _files(folder)]
    return {name: cached.commit(name) for name in names}


def _folders(folder: Path) -> Iterator[Path]:
    return (path for path in _entries(folder) if path.is_dir())


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _entries(folder: Path) -> Iterable[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
