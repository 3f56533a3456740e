"""What a MODEL argument means: an alias, a repository, a folder or a file. Nothing here asks the network.

Rules, first match wins. An existing folder or `.gguf` file is itself. What looks like a path (it begins with
`.`, `/` or `~`, or holds a backslash) is a path and never a repository, so that a mistyped path downloads
nothing. Then a name of the user's own, an alias (`hub.aliases`), then `owner/repo`, `owner/repo@revision` or
`owner/repo/file.gguf[@revision]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from llmrs_cli.errors import ModelError, UsageError, quoted
from llmrs_cli.hub.aliases import ALIASES, BUILT_IN, Alias

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
_REPO = re.compile(rf"({_PART}/{_PART})(?:/([A-Za-z0-9._-]{{1,200}}\.gguf))?(?:@([^@]*))?")
_REVISION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,198}[A-Za-z0-9])?")
MAX_NAME = 4096
"""Characters of a MODEL argument; a path is never longer."""


@dataclass(frozen=True, slots=True)
class ModelName:
    """A MODEL argument, understood. `path` belongs to folder and file, `repo` to the other two."""

    text: str
    """As the user wrote it; what messages and listings show."""
    kind: Literal["built-in", "repo", "folder", "file"]
    path: Path | None = None
    repo: str | None = None
    revision: str | None = None
    """Branch, tag or commit that the user pinned."""
    file: str | None = None
    """The one file of the repository that is meant."""
    alias: Alias | None = None


def parse_model(text: str, own: Mapping[str, str] | None = None) -> ModelName:
    """Understand a MODEL argument; `own` are the user's own names and what they stand for (`hub.own_names`).

    Raises UsageError for text that cannot be a model (a prompt in its place), ModelError for a path that is
    not there or a name that means nothing, with the nearest alias.
    """
    if 0 < len(text) <= MAX_NAME:
        if (path := _existing(text)) is not None:
            return path
        if looks_like_path(text):
            raise _no_path(text)
    if any(character.isspace() for character in text):
        raise UsageError(
            f"{quoted(text)} is not a model name.", hint=f"For a prompt, type: -p {quoted(text)}"
        )
    if not text or len(text) > MAX_NAME or not text.isprintable():
        raise UsageError(f"{quoted(text)} is not a model name.", hint="'llmrs alias list' shows the names.")
    if own and text in own:
        return replace(parse_model(own[text]), text=text)
    return _alias(text) or _repo(text)


def pinned(name: ModelName, revision: str | None) -> ModelName:
    """`name` at `revision` (a flag's value; None: as it is). Raises UsageError where that means nothing."""
    if revision is None or revision == name.revision:
        return name
    if name.kind != "repo":
        raise UsageError(
            f"{quoted(name.text)} has no revisions.", hint="They belong to repositories of the Hub."
        )
    if name.revision is not None:
        raise UsageError(f"Two revisions are named, {quoted(name.revision)} and {quoted(revision)}.")
    return replace(name, revision=_revision(revision))


def looks_like_path(text: str) -> bool:
    """Whether `text` can only be meant as a path."""
    return text.startswith((".", "/", "~")) or "\\" in text or text.endswith("/")


def nearest(text: str, names: Iterable[str] = ALIASES) -> str | None:
    """The name that `text` was probably meant to be, its last path component counted alone as well."""
    wanted = _plain(text)
    for candidate in (wanted, wanted.rpartition("/")[2]):
        if near := get_close_matches(candidate, list(names), n=1, cutoff=0.7):
            return near[0]
    return None


def suggestion(text: str) -> str:
    """A hint for a name that means nothing: the nearest alias, or where to see the names."""
    near = nearest(text)
    return (
        f"Did you mean {near!r}?" if near else "'llmrs alias list' shows the names; 'owner/repo' works too."
    )


def _existing(text: str) -> ModelName | None:
    path = Path(text).expanduser() if text.startswith("~/") or text == "~" else Path(text)
    try:
        if path.is_dir():
            return ModelName(text, "folder", path)
        if path.is_file():
            if path.suffix.lower() == ".gguf":
                return ModelName(text, "file", path)
            raise ModelError(
                f"{quoted(text)} is a file, but not a .gguf one.",
                hint="Name a .gguf file, or the folder that holds config.json and the safetensors files.",
            )
    except OSError:  # a name too long for the file system, or a folder that may not be searched
        return None
    return None


def _no_path(text: str) -> ModelError:
    kind = "file" if text.lower().endswith(".gguf") else "folder"
    return ModelError(
        f"Model {kind} not found: {quoted(text)}.",
        hint="Check the path; a name such as 'qwen2.5-3b' or 'owner/repo' is looked up on the Hub.",
    )


def _plain(text: str) -> str:
    """Lower case, `:` as `-` and without the -instruct that an alias means anyway."""
    return re.sub(r"-instruct(?=-awq$|$)", "", text.lower().replace(":", "-"))


def _alias(text: str) -> ModelName | None:
    alias = ALIASES.get(re.sub(r"-instruct(?=-awq$|$)", "", text.lower()))
    if alias is None:
        return None
    if alias.name == BUILT_IN:
        return ModelName(text, "built-in", file=alias.file, alias=alias)
    return ModelName(text, "repo", repo=alias.repo, file=alias.file, alias=alias)


def _repo(text: str) -> ModelName:
    match = _REPO.fullmatch(text)
    if match is None:
        name, at, revision = text.partition("@")
        if at and (alias := _alias(name)) is not None and alias.repo is not None:
            return ModelName(text, "repo", repo=alias.repo, revision=_revision(revision), alias=alias.alias)
        raise ModelError(f"There is no model {quoted(text)}.", hint=suggestion(text))
    repo, file, revision = match.groups()
    if ".." in repo or "--" in repo or repo.endswith(".git"):
        raise ModelError(f"{quoted(text)} is not a repository name.", hint=suggestion(text))
    return ModelName(text, "repo", repo=repo, file=file, revision=_revision(revision))


def _revision(text: str | None) -> str | None:
    """A revision that is safe as a path under the cache's `refs` folder."""
    if text is None:
        return None
    if not _REVISION.fullmatch(text) or ".." in text or "//" in text:
        raise UsageError(f"{quoted(text)} is not a revision.", hint="Name a branch, a tag or a commit.")
    return text
