"""What a repository holds at one commit, and which of its files a model needs. Nothing is asked here.

The library hands over the Hub's listing as it came: commit, names, sizes, and a hash for every file (SHA-256
for large ones, git's own blob hash for the rest). Nothing in it is trusted before it has been checked here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrs_cli.errors import ModelError, quoted
from llmrs_cli.hub.files import CHUNK, is_portable, no_clashes, refuse_escape
from llmrs_cli.hub.refusals import not_a_hub

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

MAX_FILES = 10_000
SMALL = frozenset(
    {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "chat_template.jinja",
        "chat_template.json",
        "quantize_config.json",
        "quant_config.json",
        "model.safetensors.index.json",
    }
)
"""Files beside the weights that a loader or tokenizer of ours reads."""

MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What the library raises at an answer that is no Hub's."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LICENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+ -]{0,59}")
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")


@dataclass(frozen=True, slots=True)
class RepoFile:
    """One file of a repository."""

    name: str
    size: int
    hash: str
    """SHA-256 of the content (64 digits) or git's blob hash (40); also its name in the cache."""

    def is_content_of(self, path: Path) -> bool:
        """Whether the file at `path` has this length and hash; False if it is not there."""
        try:
            if path.stat().st_size != self.size:
                return False
            with path.open("rb") as content:
                digest = self._digest()
                while chunk := content.read(CHUNK):
                    digest.update(chunk)
        except FileNotFoundError:
            return False
        return bool(digest.hexdigest() == self.hash)

    def _digest(self) -> Any:
        """A hash object that ends at `hash` when fed with the right content."""
        import hashlib  # listing what is here hashes nothing

        if len(self.hash) == 64:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a repository at one commit."""

    repo: str
    commit: str
    files: tuple[RepoFile, ...]
    licence: str | None = None
    """As its publisher states it; None: not stated in a word."""


def is_commit(revision: str) -> bool:
    """Whether a revision is a full commit, which never changes its content."""
    return _COMMIT.fullmatch(revision) is not None


def parse_listing(repo: str, info: ModelInfo) -> Listing:
    """Check the Hub's answer. Raises NetworkError if it is no listing at all, ModelError for unsafe names.

    Files whose names cannot exist on every system are left out: nothing that a model needs is called so.
    """
    entries = info.siblings or []
    if not isinstance(info.sha, str) or not is_commit(info.sha) or len(entries) > MAX_FILES:
        raise not_a_hub()
    files = [_repo_file(entry) for entry in entries]
    for file in files:
        refuse_escape(file.name)
    kept = tuple(file for file in files if is_portable(file.name))
    return Listing(repo, info.sha, kept, _licence(info))


def _licence(info: ModelInfo) -> str | None:
    """The licence's name where it has one of its own, else its short form."""
    card: Any = info.card_data  # whatever its author wrote
    stated = [card.get("license_name"), card.get("license")] if hasattr(card, "get") else []
    return next((name for name in stated if isinstance(name, str) and _LICENCE.fullmatch(name)), None)


def _repo_file(entry: RepoSibling) -> RepoFile:
    size, digest = (entry.lfs.size, entry.lfs.sha256) if entry.lfs else (entry.size, entry.blob_id)
    known = _SHA256 if entry.lfs else _COMMIT
    match entry.rfilename, size, digest:
        case str(name), int(count), str(text) if 0 <= count < 2**50 and known.fullmatch(text):
            return RepoFile(name, count, text)
        case _:
            raise not_a_hub()


def needed(listing: Listing, file: str | None = None) -> tuple[RepoFile, ...]:
    """The files that make up the model, small ones first; with `file`, that one alone.

    Raises ModelError if the repository holds no weights that can be loaded, naming what it holds instead.
    """
    by_name = {entry.name: entry for entry in listing.files}
    if len(by_name) != len(listing.files):
        raise ModelError(f"{quoted(listing.repo)} lists a file twice.")
    if file is not None:
        if file not in by_name:
            raise ModelError(f"{quoted(listing.repo)} has no file {quoted(file)}.", hint=_ggufs(by_name))
        return (by_name[file],)
    weights = weight_names(by_name)
    if not weights:
        return (by_name[_only_gguf(listing.repo, by_name)],)
    if "config.json" not in by_name:
        raise ModelError(f"{quoted(listing.repo)} holds weights but no config.json.")
    names = [*sorted(SMALL & by_name.keys()), *weights]
    no_clashes(by_name, names)
    return tuple(by_name[name] for name in names)


def weight_names(names: Iterable[str]) -> list[str]:
    """The safetensors files at the top of a repository that hold the model.

    One `model.safetensors` or its shards if there are such; else whatever else is there, except the
    publisher's second copy in another layout (`consolidated`) and adapters.
    """
    top = sorted(name for name in names if name.endswith(".safetensors") and "/" not in name)
    if "model.safetensors" in top:
        return ["model.safetensors"]
    shards = [name for name in top if _SHARD.fullmatch(name)]
    return shards or [name for name in top if not name.startswith(("consolidated", "adapter"))]


def is_weight(name: str) -> bool:
    """Whether a file is large: weights rather than something beside them."""
    return name.endswith((".safetensors", ".gguf"))


def _only_gguf(repo: str, names: Iterable[str]) -> str:
    ggufs = list(_gguf_names(names))
    if len(ggufs) == 1:
        return ggufs[0]
    if ggufs:
        raise ModelError(f"{quoted(repo)} holds {len(ggufs)} models.", hint=_ggufs(names, repo))
    pickled = any(name.endswith((".bin", ".pt", ".pth")) for name in names)
    kind = "only pickled weights, which can run code and are not loaded" if pickled else "no weights"
    raise ModelError(
        f"{quoted(repo)} holds {kind}.", hint="Name a repository with safetensors or GGUF files."
    )


def _gguf_names(names: Iterable[str]) -> Iterator[str]:
    return (name for name in sorted(names) if name.lower().endswith(".gguf") and "/" not in name)


def _ggufs(names: Iterable[str], repo: str = "owner/repo") -> str | None:
    found = list(_gguf_names(names))
    if not found:
        return None
    more = f" and {len(found) - 6} more" if len(found) > 6 else ""
    return f"Name one, as {repo}/FILE: {', '.join(found[:6])}{more}."
