"""What can go without a loss: parts of downloads, commits that a branch has left behind, content of nobody.

First found, then shown to the user, then removed: `find_leftovers` changes nothing. A commit is left behind
if no branch or tag stands at it any more while one stands at another commit of the same repository; a commit
that was fetched by its number alone stays.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from llmrs_cli.hub.builtin import WORK_PREFIX
from llmrs_cli.hub.cache import CachedRepo
from llmrs_cli.hub.files import size_of
from llmrs_cli.hub.shelf import kept_commits, repos_in

SETTLED = 3600.0
"""Seconds without a change after which a part of a download is taken for abandoned."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file or folder that can go."""

    path: Path
    size: int
    """Bytes that its removal frees."""
    why: str
    """"unfinished download", "superseded commit" or "content of no commit"."""


def find_leftovers(hub: Path, cache: Path, *, now: float | None = None) -> list[Leftover]:
    """Everything that can go, in the Hub's cache and in ours."""
    before = (time.time() if now is None else now) - SETTLED
    found = [leftover for repo in repos_in(hub) for leftover in _of_repo(hub, repo, before)]
    for work in sorted((cache / "models").glob(f"{WORK_PREFIX}*")):
        if work.stat().st_mtime < before:
            size = sum(size_of(path) for path in work.rglob("*"))
            found.append(Leftover(work, size, "unfinished download"))
    return found


def remove_leftovers(leftovers: Iterable[Leftover]) -> int:
    """Remove them; returns the bytes that were freed. What has gone meanwhile is no error."""
    freed = 0
    for leftover in leftovers:
        with suppress(FileNotFoundError):
            if leftover.path.is_dir():
                shutil.rmtree(leftover.path)
            else:
                leftover.path.unlink()
            freed += leftover.size
    return freed


def _of_repo(hub: Path, repo: str, before: float) -> Iterator[Leftover]:
    cached = CachedRepo.of(hub, repo)
    commits = list(kept_commits(hub, repo))
    superseded = [
        cached.snapshot(entry.commit)
        for entry in commits
        if entry.commit and not entry.revisions and any(other.revisions for other in commits)
    ]
    yield from (Leftover(path, 0, "superseded commit") for path in superseded)
    used = {
        path.resolve()
        for snapshot in (cached.folder / "snapshots").glob("*")
        if snapshot not in superseded
        for path in snapshot.rglob("*")
    }
    unfinished = cached.unfinished()
    for path in sorted({*unfinished, *(cached.folder / "blobs").glob("*")}):
        if path.stat().st_mtime >= before or path.is_symlink():
            continue
        if path in unfinished:
            yield Leftover(path, size_of(path), "unfinished download")
        elif path.resolve() not in used:
            yield Leftover(path, size_of(path), "content of no commit")
