"""Short names for models: the built-in ones, and the user's own.

llmrs alias [list | set NAME MODEL | rm NAME...] [--json]
"""

from __future__ import annotations

import json

import click

from llmrs_cli.cli import complete
from llmrs_cli.cli.options import json_option
from llmrs_cli.cli.table import table
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.config import directories


@click.group("alias", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """List, give and forget short names of models.

    \b
      llmrs alias list
      llmrs alias set mine ./my-finetune
      llmrs alias set small qwen2.5-0.5b@main
      llmrs alias rm mine
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_names, as_json=False)


@command.command("list")
@json_option
def list_names(as_json: bool) -> None:
    """List your own names, then the built-in ones."""
    from llmrs_cli.hub.aliases import ALIASES
    from llmrs_cli.hub.own_names import read_names

    terminal = Terminal.standard()
    own = [(name, model, "yours") for name, model in sorted(read_names(directories().config).items())]
    rows = [*own, *((alias.name, alias.repo, "built-in") for alias in ALIASES.values())]
    if as_json:
        keys = ("name", "model", "origin")
        terminal.data(json.dumps([dict(zip(keys, row, strict=True)) for row in rows]))
        return
    for line in table([("NAME", "MODEL", "FROM"), *rows]):
        terminal.data(line)


@command.command("set")
@click.argument("name", metavar="NAME")
@click.argument("model", metavar="MODEL", shell_complete=complete.models)
def set_name(name: str, model: str) -> None:
    """Let NAME stand for MODEL, wherever a model is asked for."""
    from llmrs_cli.hub.own_names import add_name

    add_name(directories().config, name, model)


@command.command("rm")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete.own_names)
def forget_names(names: tuple[str, ...]) -> None:
    """Forget names of yours; the models stay."""
    from llmrs_cli.hub.own_names import remove_name

    for name in names:
        remove_name(directories().config, name)
