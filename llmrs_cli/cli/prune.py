"""Removes what nobody misses: parts of downloads, superseded commits, content of no commit, copies of what is gone.

llmrs prune [-y] [-n] [--json]
"""

from __future__ import annotations

import json

import click

from llmrs_cli.cli.confirm import confirm
from llmrs_cli.cli.copies import all_leftovers
from llmrs_cli.cli.options import json_option, quiet_option, removal_options
from llmrs_cli.cli.table import table
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.config import directories


@click.command("prune")
@removal_options
@json_option
@quiet_option
def command(yes: bool, dry_run: bool, as_json: bool, quiet: bool) -> None:
    """Remove unfinished downloads, superseded commits, stray copies.

    A commit is superseded if its branch has moved on and no other stands at it; a converted copy is stray if
    its model is gone or has changed. What is unfinished and changed within the last hour stays: it may be
    under way. On a terminal you are asked first; elsewhere -y is needed.

    \b
      llmrs prune -n       only say what would go
      llmrs prune -y
    """
    from llmrs_cli.hub.files import size_text
    from llmrs_cli.hub.leftovers import remove_leftovers

    terminal = Terminal.standard(quiet=quiet)
    places = directories()
    found = all_leftovers(places)
    total = sum(leftover.size for leftover in found)
    if not dry_run and found:
        confirm(terminal, f"Remove {len(found)} leftovers, {size_text(total)}?", yes=yes)
        terminal.notice(f"Removed {size_text(remove_leftovers(found))}.")
    elif not found:
        terminal.notice("There is nothing to remove.")
    if as_json:
        entries = [{"path": str(left.path), "size": left.size, "why": left.why} for left in found]
        terminal.data(json.dumps({"leftovers": entries, "size": total, "removed": not dry_run}))
    elif dry_run and found:
        rows = [(left.why, size_text(left.size), str(left.path)) for left in found]
        for line in table([("WHY", "SIZE", "PATH"), *rows], right=frozenset({1})):
            terminal.data(line)
