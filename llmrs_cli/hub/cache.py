"""The Hub's cache on disk, in the layout that every Hub program shares; read and entered here, nothing fetched.

    models--owner--repo/
        blobs/<hash>                         content, under the hash that the Hub gives it
        llmrs-partial/<hash>                 what has arrived so far of a file that we fetch ourselves
        refs/<revision>                      the commit that a branch or tag stood at when last asked
        snapshots/<commit>/<file>            a link to the blob

Other programs' entries are as good as ours, so a snapshot counts as whole if the files that a model needs
are there, not if we wrote it.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from llmrs_cli.hub.files import flush_folder, fresh_name, publish, write_whole
from llmrs_cli.hub.listing import RepoFile, is_commit, weight_names

MAX_INDEX = 64 << 20
"""Bytes of a shard index that are read."""


@dataclass(frozen=True, slots=True)
class CachedRepo:
    """One repository's folder in the cache; it need not exist."""

    folder: Path

    @classmethod
    def of(cls, hub: Path, repo: str) -> CachedRepo:
        """The folder of `repo` under the cache `hub`."""
        return cls(hub / "--".join(["models", *repo.split("/")]))

    @property
    def lock_folder(self) -> Path:
        """Where Hub programs lock single files of this repository against each other."""
        return self.folder.parent / ".locks" / self.folder.name

    @property
    def partials(self) -> Path:
        """Our folder of unfinished files."""
        return self.folder / "llmrs-partial"

    def unfinished(self) -> list[Path]:
        """Parts of downloads, ours and those of other Hub programs."""
        return sorted([*self.partials.glob("*"), *(self.folder / "blobs").glob("*.incomplete")])

    def commit(self, revision: str) -> str | None:
        """The commit that `revision` stood at when last asked; a full commit is itself."""
        if is_commit(revision):
            return revision
        try:
            text = (self.folder / "refs" / revision).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return text if is_commit(text) else None

    def snapshot(self, commit: str) -> Path:
        """The folder of files as they are at `commit`."""
        return self.folder / "snapshots" / commit

    def blob(self, file: RepoFile) -> Path:
        """Where the content of `file` lies, or will."""
        return self.folder / "blobs" / file.hash

    def partial(self, file: RepoFile) -> Path:
        """Where the content of `file` gathers until it is whole."""
        return self.partials / file.hash

    def has(self, commit: str, file: RepoFile) -> bool:
        """Whether the snapshot holds `file` in full length."""
        path = self.snapshot(commit) / file.name
        return path.is_file() and path.stat().st_size == file.size

    def has_blob(self, file: RepoFile) -> bool:
        """Whether the content of `file` is here in full length, under whatever name."""
        path = self.blob(file)
        return path.is_file() and path.stat().st_size == file.size

    def prepare(self, commit: str) -> None:
        """Make the folders that `enter` and a download write to."""
        for folder in (self.folder / "blobs", self.partials, self.snapshot(commit), self.lock_folder):
            folder.mkdir(parents=True, exist_ok=True)

    def enter(self, commit: str, file: RepoFile) -> None:
        """Our one way into the cache: make the finished and checked partial of `file` its blob, and link that
        into the snapshot. Of two processes either may come first; where links do not work, a second name does.
        """
        with suppress(FileNotFoundError):
            publish(self.partial(file), self.blob(file))
        target = self.snapshot(commit) / file.name
        temporary = target.with_name(fresh_name())
        try:
            temporary.symlink_to(os.path.relpath(self.blob(file), target.parent))
        except OSError:
            temporary.hardlink_to(self.blob(file))
        temporary.replace(target)
        temporary.unlink(missing_ok=True)  # renaming one name of a file to another of its names does nothing
        flush_folder(target.parent)

    def remember(self, revision: str, commit: str) -> None:
        """Note that `revision` stands at `commit`."""
        if revision != commit and self.commit(revision) != commit:
            path = self.folder / "refs" / revision
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, commit.encode("ascii"), mode=0o644)

    def model(self, commit: str, file: str | None = None) -> Path | None:
        """The snapshot's folder, or its one GGUF file or `file`, if all that a model needs is there.

        Judged from the files alone, without the network.
        """
        snapshot = self.snapshot(commit)
        wanted = _wanted(snapshot) if file is None else [file]
        if not wanted or not all((snapshot / name).is_file() for name in wanted):
            return None
        return snapshot / wanted[0] if len(wanted) == 1 else snapshot


def _wanted(snapshot: Path) -> list[str]:
    """Names that a snapshot must hold: configuration and weights, or one GGUF file; [] if it is no model."""
    try:
        names = sorted(path.name for path in snapshot.iterdir())
    except OSError:
        return []
    weights = weight_names(names)
    if "config.json" not in names or not weights:
        ggufs = [name for name in names if name.lower().endswith(".gguf")]
        return ggufs if len(ggufs) == 1 else []
    if weights != ["model.safetensors"]:
        weights = _shards(snapshot / "model.safetensors.index.json") or weights
    return ["config.json", *weights]


def _shards(index: Path) -> list[str]:
    """The files that a shard index names."""
    try:
        if index.stat().st_size > MAX_INDEX:
            return []
        match json.loads(index.read_bytes()):
            case {"weight_map": dict(weights)}:
                return sorted({name for name in weights.values() if isinstance(name, str)})
    except (OSError, ValueError, RecursionError):
        pass
    return []
