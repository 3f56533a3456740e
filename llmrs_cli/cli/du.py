"""How much of the disk models and caches take.

llmrs du [--json]
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from llmrs_cli.cli.copies import all_leftovers
from llmrs_cli.cli.options import json_option
from llmrs_cli.cli.table import table
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.config import Directories, directories


@dataclass(frozen=True, slots=True)
class Usage:
    """A folder and what it holds."""

    what: str
    """The name of a model, or of a cache of ours."""
    size: int
    """Bytes on disk; content that commits share counts once."""
    path: str


@click.command("du")
@json_option
def command(as_json: bool) -> None:
    """Show how much of the disk models and caches take.

    \b
      llmrs du
      llmrs du --json | jq .total
    """
    from llmrs_cli.hub.files import size_text

    terminal = Terminal.standard()
    places = directories()
    used = list(_usage(places))
    total = sum(entry.size for entry in used)
    leftover = sum(entry.size for entry in all_leftovers(places))
    free = shutil.disk_usage(_existing(places.hub)).free
    if as_json:
        report = {"entries": [asdict(entry) for entry in used], "total": total}
        terminal.data(json.dumps({**report, "leftovers": leftover, "disk_free": free}))
        return
    rows = [(entry.what, size_text(entry.size), entry.path) for entry in used]
    for line in table(
        [("WHAT", "SIZE", "PATH"), *rows, ("total", size_text(total), "")], right=frozenset({1})
    ):
        terminal.data(line)
    terminal.notice(f"{size_text(free)} are free on the disk of {str(places.hub)!r}.")
    if leftover:
        terminal.notice(f"'llmrs prune' would free {size_text(leftover)}.")


def _usage(places: Directories) -> Iterator[Usage]:
    """Models in the Hub's cache by their names, then the folders of our own cache and our state."""
    from llmrs_cli.hub.cache import CachedRepo
    from llmrs_cli.hub.files import folder_bytes, size_of
    from llmrs_cli.hub.shelf import repos_in

    models = [
        (_model_name(places.hub, repo), CachedRepo.of(places.hub, repo).folder)
        for repo in repos_in(places.hub)
    ]
    own = sorted(places.cache.iterdir()) if places.cache.is_dir() else []
    folders = [*models, *((f"cache: {path.name}", path) for path in own), ("state", places.state)]
    for what, path in folders:
        if size := folder_bytes(path) or size_of(path):
            yield Usage(what, size, str(path))


def _model_name(hub: Path, repo: str) -> str:
    from llmrs_cli.hub.shelf import kept_commits

    return next((entry.name for entry in kept_commits(hub, repo)), repo)


def _existing(path: Path) -> Path:
    """`path` or the nearest folder above it that exists."""
    return next(folder for folder in [path, *path.parents] if folder.exists())
