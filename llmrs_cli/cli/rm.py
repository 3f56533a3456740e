"""Removes models from this machine.

llmrs rm MODEL... [-y] [-n] [--json]
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from llmrs_cli.cli import complete
from llmrs_cli.cli.confirm import confirm
from llmrs_cli.cli.models import model_named
from llmrs_cli.cli.options import json_option, quiet_option, removal_options
from llmrs_cli.cli.table import table
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.config import Directories, directories
from llmrs_cli.errors import ModelError, UsageError, quoted

if TYPE_CHECKING:
    from llmrs_cli.hub.names import ModelName


@dataclass(frozen=True, slots=True)
class Target:
    """What one MODEL argument would remove."""

    name: str
    repo: str | None
    """None: the built-in model."""
    commits: int
    size: int
    """Bytes that its removal frees."""


@click.command("rm")
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, shell_complete=complete.kept)
@removal_options
@json_option
@quiet_option
def command(models: tuple[str, ...], yes: bool, dry_run: bool, as_json: bool, quiet: bool) -> None:
    """Remove models from this machine.

    A repository goes with every commit and every unfinished download of it, for all programs that share the
    Hub's cache. Folders and files of yours are never removed. On a terminal you are asked first; elsewhere
    -y is needed.

    \b
      llmrs rm qwen2.5-3b
      llmrs rm -n qwen2.5-3b qwen2.5-7b      only say what would go
    """
    from llmrs_cli.hub.files import size_text

    terminal = Terminal.standard(quiet=quiet)
    places = directories()
    targets = list({target.repo: target for target in (_find(text, places) for text in models)}.values())
    if not dry_run:
        what = ", ".join(f"{target.name} ({size_text(target.size)})" for target in targets)
        confirm(terminal, f"Remove {what}?", yes=yes)
        for target in targets:
            _remove(target, places)
            terminal.notice(f"Removed {quoted(target.name)}, {size_text(target.size)}.")
    if as_json:
        terminal.data(json.dumps([{**asdict(target), "removed": not dry_run} for target in targets]))
    elif dry_run:
        rows = [(target.name, size_text(target.size), str(target.commits)) for target in targets]
        for line in table([("NAME", "SIZE", "COMMITS"), *rows], right=frozenset({1, 2})):
            terminal.data(line)


def _find(text: str, places: Directories) -> Target:
    """What `text` means here; ModelError if it is not on this machine, UsageError if it is not ours to remove."""
    from llmrs_cli.hub.cache import CachedRepo
    from llmrs_cli.hub.files import folder_bytes, size_of
    from llmrs_cli.hub.shelf import built_in_path, kept_commits

    name = model_named(text)
    if name.kind == "built-in":
        size = size_of(built_in_path(places.cache))
        if size:
            return Target(text, None, 0, size)
    elif name.repo is None:
        raise UsageError(f"{quoted(text)} is a {name.kind} of yours.", hint="Remove it by hand.")
    else:
        _refuse_part(name)
        if kept := list(kept_commits(places.hub, name.repo)):
            commits = sum(entry.commit is not None for entry in kept)
            return Target(text, name.repo, commits, folder_bytes(CachedRepo.of(places.hub, name.repo).folder))
    raise ModelError(f"{quoted(text)} is not on this machine.", hint="'llmrs list' shows what is.")


def _refuse_part(name: ModelName) -> None:
    if name.revision is not None or name.file is not None:
        raise UsageError(
            f"{quoted(name.text)} is a part of {name.repo}, which goes as a whole.",
            hint=f"Type 'llmrs rm {name.repo}', or 'llmrs prune' for commits that were superseded.",
        )


def _remove(target: Target, places: Directories) -> None:
    from llmrs_cli.hub.shelf import built_in_path, remove_repo

    if target.repo is None:
        built_in_path(places.cache).unlink(missing_ok=True)
    else:
        remove_repo(places.hub, target.repo)
