"""Removes models from this machine.

llmrs rm MODEL... [-y] [-n] [--json]
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from llmrs_cli.cli import complete
from llmrs_cli.cli.confirm import confirm
from llmrs_cli.cli.copies import Copy, copies_of, remove_copy
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
    """Bytes that its removal frees, copies among them."""
    copies: tuple[Copy, ...]
    """What `llmrs convert` made of it."""
    only_copies: bool
    """The model itself stays."""

    def as_object(self) -> dict[str, Any]:
        """For --json."""
        return {
            "name": self.name,
            "repo": self.repo,
            "commits": self.commits,
            "size": self.size,
            "copies": [str(copy.path) for copy in self.copies],
        }


@click.command("rm")
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, shell_complete=complete.kept)
@click.option("--converted", is_flag=True, help="Only the copies that 'llmrs convert' made; the models stay.")
@removal_options
@json_option
@quiet_option
def command(
    models: tuple[str, ...], converted: bool, yes: bool, dry_run: bool, as_json: bool, quiet: bool
) -> None:
    """Remove models from this machine.

    A repository goes with every commit and every unfinished download of it, for all programs that share the
    Hub's cache, and with its converted copies. Folders and files of yours are never removed. On a terminal
    you are asked first; elsewhere -y is needed.

    \b
      llmrs rm qwen2.5-3b
      llmrs rm -n qwen2.5-3b qwen2.5-7b      only say what would go
      llmrs rm --converted qwen2.5-7b-awq
    """
    from llmrs_cli.hub.files import size_text

    terminal = Terminal.standard(quiet=quiet)
    places = directories()
    found = (_find(text, places, converted) for text in models)
    targets = list({(target.repo, target.copies): target for target in found}.values())
    if not dry_run:
        what = ", ".join(f"{_what(target, target.name)} ({size_text(target.size)})" for target in targets)
        confirm(terminal, f"Remove {what}?", yes=yes)
        for target in targets:
            _remove(target, places)
            terminal.notice(f"Removed {_what(target, quoted(target.name))}, {size_text(target.size)}.")
    if as_json:
        terminal.data(json.dumps([{**target.as_object(), "removed": not dry_run} for target in targets]))
    elif dry_run:
        rows = [
            (target.name, size_text(target.size), str(target.commits), str(len(target.copies)))
            for target in targets
        ]
        for line in table([("NAME", "SIZE", "COMMITS", "COPIES"), *rows], right=frozenset({1, 2, 3})):
            terminal.data(line)


def _find(text: str, places: Directories, only_copies: bool) -> Target:
    """What `text` means here; ModelError if it is not on this machine, UsageError if it is not ours to remove."""
    from llmrs_cli.hub.cache import CachedRepo
    from llmrs_cli.hub.files import folder_bytes, size_of
    from llmrs_cli.hub.shelf import built_in_path, kept_commits

    name = model_named(text)
    copies = tuple(copies_of(name, places))
    of_copies = sum(copy.size for copy in copies)
    if only_copies:
        if not copies:
            raise ModelError(
                f"{quoted(text)} has no converted copy.", hint="'llmrs list' shows what is here."
            )
        return Target(text, name.repo, 0, of_copies, copies, True)
    if name.kind == "built-in":
        size = size_of(built_in_path(places.cache))
        if size:
            return Target(text, None, 0, size + of_copies, copies, False)
    elif name.repo is None:
        raise UsageError(f"{quoted(text)} is a {name.kind} of yours.", hint="Remove it by hand.")
    else:
        _refuse_part(name)
        kept = list(kept_commits(places.hub, name.repo))
        if kept or copies:
            commits = sum(entry.commit is not None for entry in kept)
            size = folder_bytes(CachedRepo.of(places.hub, name.repo).folder)
            return Target(text, name.repo, commits, size + of_copies, copies, False)
    raise ModelError(f"{quoted(text)} is not on this machine.", hint="'llmrs list' shows what is.")


def _what(target: Target, name: str) -> str:
    """What goes, in words."""
    count = len(target.copies)
    copies = "converted copy" if count == 1 else f"{count} converted copies"
    if target.only_copies:
        return f"{'the ' if count == 1 else ''}{copies} of {name}"
    return f"{name} and its {copies}" if count else name


def _refuse_part(name: ModelName) -> None:
    if name.revision is not None or name.file is not None:
        raise UsageError(
            f"{quoted(name.text)} is a part of {name.repo}, which goes as a whole.",
            hint=f"Type 'llmrs rm {name.repo}', or 'llmrs prune' for commits that were superseded.",
        )


def _remove(target: Target, places: Directories) -> None:
    from llmrs_cli.hub.shelf import built_in_path, remove_repo

    for copy in target.copies:
        remove_copy(copy)
    if target.only_copies:
        return
    if target.repo is None:
        built_in_path(places.cache).unlink(missing_ok=True)
    else:
        remove_repo(places.hub, target.repo)
