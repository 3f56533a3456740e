"""The model to use where none is named.

llmrs default [MODEL] [--json]
"""

from __future__ import annotations

import json

import click

from llmrs_cli.cli import complete
from llmrs_cli.cli.config import warn_if_overruled
from llmrs_cli.cli.options import json_option
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.config import directories, load_settings


@click.command("default")
@click.argument("model", metavar="[MODEL]", required=False, shell_complete=complete.models)
@json_option
def command(model: str | None, as_json: bool) -> None:
    """Show or set the model to use where none is named.

    'llmrs config unset model' goes back to the choice of llmrs: the built-in model, or qwen2.5-3b where a
    GPU holds it.

    \b
      llmrs default
      llmrs default qwen2.5-3b
    """
    from llmrs_cli.hub.aliases import BUILT_IN
    from llmrs_cli.hub.own_names import set_default_model

    terminal = Terminal.standard()
    if model is not None:
        set_default_model(directories().config, model)
        warn_if_overruled("model")
        return
    setting = load_settings().model
    if as_json:
        terminal.data(json.dumps({"model": setting.value, "origin": setting.origin}))
        return
    terminal.data(setting.value or BUILT_IN)
    terminal.notice(
        f"From {setting.origin}."
        if setting.value
        else "No default is set: a GPU that holds it gets qwen2.5-3b."
    )
