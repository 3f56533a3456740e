"""Saved conversations: list, show, export, remove.

llmrs sessions [list | show NAME | export NAME FILE | rm NAME...]
"""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from click.shell_completion import CompletionItem

from llmrs_cli.cli.options import json_option
from llmrs_cli.cli.table import table
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.config import directories


def _names(ctx: click.Context, parameter: click.Parameter, prefix: str) -> list[CompletionItem[str]]:
    from llmrs_cli.chat.store import SessionStore

    return [CompletionItem(n) for n in SessionStore(directories().state).names() if n.startswith(prefix)]


@click.group("sessions", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """List, show, export and remove saved conversations.

    A conversation of llmrs chat is saved after every answer, unless --no-save is given. 'llmrs chat -c' goes
    on with the one that was used last, 'llmrs chat --session NAME' with any.

    \b
      llmrs sessions list
      llmrs sessions show 20260131-094500
      llmrs sessions export 20260131-094500 talk.jsonl
      llmrs sessions rm 20260131-094500
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_sessions, as_json=False)


@command.command("list")
@json_option
def list_sessions(as_json: bool) -> None:
    """List saved sessions, the one that was used last at the end."""
    from llmrs_cli.chat.display import moment
    from llmrs_cli.chat.store import SessionStore

    terminal = Terminal.standard()
    saved = SessionStore(directories().state).listing()
    if as_json:
        terminal.data(json.dumps([asdict(entry) for entry in saved], ensure_ascii=False))
        return
    if not saved:
        terminal.notice("No session is saved yet.")
        return
    rows = [
        (entry.name, moment(entry.changed), str(entry.turns), entry.model, entry.title) for entry in saved
    ]
    for line in table([("NAME", "CHANGED", "TURNS", "MODEL", "FIRST QUESTION"), *rows]):
        terminal.data(line)


@command.command("show")
@click.argument("name", metavar="NAME", shell_complete=_names)
@json_option
def show_session(name: str, as_json: bool) -> None:
    """Print a session as Markdown, or as JSON."""
    from llmrs_cli.chat.export import exported
    from llmrs_cli.chat.store import SessionStore

    terminal = Terminal.standard()
    loaded = SessionStore(directories().state).load(name)
    terminal.answer(exported(loaded.conversation, loaded.model, "json" if as_json else "md"))


@command.command("export")
@click.argument("name", metavar="NAME", shell_complete=_names)
@click.argument("file", metavar="FILE")
def export_session(name: str, file: str) -> None:
    """Write a session to FILE: .md, .json or .jsonl.

    A .jsonl file has one row, which llmrs batch reads.
    """
    from llmrs_cli.chat.export import exported, format_of, write_export
    from llmrs_cli.chat.store import SessionStore

    kind = format_of(file)
    loaded = SessionStore(directories().state).load(name)
    write_export(file, exported(loaded.conversation, loaded.model, kind))


@command.command("rm")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=_names)
def remove_sessions(names: tuple[str, ...]) -> None:
    """Remove saved sessions."""
    from llmrs_cli.chat.store import SessionStore

    store = SessionStore(directories().state)
    for name in names:
        store.remove(name)
