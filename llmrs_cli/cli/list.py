"""The models on this machine. Reads folders, asks nobody.

llmrs list [--json]
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from llmrs_cli.cli.copies import Copy, kept_copies
from llmrs_cli.cli.options import json_option
from llmrs_cli.cli.table import table
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.config import directories

if TYPE_CHECKING:
    from llmrs_cli.hub.shelf import Kept

HEADER = ("NAME", "SIZE", "COMMIT", "REVISION", "STATE")


@click.command("list")
@json_option
def command(as_json: bool) -> None:
    """List the models on this machine.

    One line for each commit that is kept, whichever program has fetched it, and for each copy that
    'llmrs convert' made of one. 'llmrs alias list' shows the
    short names of models that can be fetched.

    \b
      llmrs list
      llmrs list --json | jq -r '.[].name'
    """
    from llmrs_cli.hub.shelf import kept_models

    terminal = Terminal.standard()
    places = directories()
    entries, copies = kept_models(places.hub, places.cache), kept_copies(places)
    if as_json:
        objects = [*map(as_object, entries), *map(_copy_as_object, copies)]
        terminal.data(json.dumps(objects))
        return
    rows = [*map(_row, entries), *map(_copy_row, copies)]
    for line in table([HEADER, *rows], right=frozenset({1})):
        terminal.data(line)
    if not rows:
        terminal.notice("No model is here yet. 'llmrs alias list' shows names to fetch with 'llmrs pull'.")


def as_object(entry: Kept) -> dict[str, Any]:
    """What `--json` says of a model: sizes in bytes, null for what it does not have."""
    return {
        "name": entry.name,
        "kind": "built-in" if entry.repo is None else "repository",
        "repo": entry.repo,
        "commit": entry.commit,
        "revisions": list(entry.revisions),
        "path": None if entry.path is None else str(entry.path),
        "size": entry.size,
        "unfinished": entry.partial,
    }


def _copy_as_object(copy: Copy) -> dict[str, Any]:
    """The same of a converted copy; its name is that of its source, null where that cannot be read."""
    return {
        "name": copy.source,
        "kind": "converted copy",
        "repo": None,
        "commit": None,
        "revisions": [],
        "path": str(copy.path),
        "size": copy.size,
        "unfinished": 0,
    }


def _copy_row(copy: Copy) -> tuple[str, ...]:
    from llmrs_cli.hub.files import size_text

    state = "" if copy.source is not None else "not usable"
    return copy.source or copy.key, size_text(copy.size), "converted", "", state


def _row(entry: Kept) -> tuple[str, ...]:
    from llmrs_cli.hub.files import size_text

    state = "" if entry.path is not None else "not whole"
    if entry.partial:
        state = ", ".join(filter(None, [state, f"{size_text(entry.partial)} unfinished"]))
    commit = "built-in" if entry.repo is None else (entry.commit or "")[:12]
    return entry.name, size_text(entry.size), commit, ", ".join(entry.revisions), state
