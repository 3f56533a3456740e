"""Prints what a shell needs to complete command lines of llmrs.

llmrs completion SHELL
"""

from __future__ import annotations

import click

from llmrs_cli.cli.complete import SHELLS, script
from llmrs_cli.cli.terminal import Terminal


@click.command("completion")
@click.argument("shell", metavar="SHELL", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    With it, bash, zsh or fish completes commands, options, and names of models.

    \b
      bash   llmrs completion bash > ~/.local/share/bash-completion/completions/llmrs
      zsh    llmrs completion zsh > "${fpath[1]}/_llmrs"
      fish   llmrs completion fish > ~/.config/fish/completions/llmrs.fish
    """
    root = ctx.find_root().command
    assert isinstance(root, click.Group)
    Terminal.standard().data(script(root, shell).rstrip("\n"))
