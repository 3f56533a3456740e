"""Settings: what they are, where each comes from, and how to change them.

llmrs config [list | path | get KEY | set KEY VALUE | unset KEY | edit] [--json]
"""

from __future__ import annotations

import json
from dataclasses import fields

import click

from llmrs_cli.cli.options import json_option
from llmrs_cli.cli.parameters import device, tokens
from llmrs_cli.cli.table import table
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.config import (
    SETTINGS_FILE,
    VARIABLES,
    Setting,
    Settings,
    directories,
    load_settings,
    private_directory,
)
from llmrs_cli.errors import LlmrsError

KEYS = tuple(field.name for field in fields(Settings))

key_argument = click.argument("key", metavar="KEY", type=click.Choice(KEYS))


@click.group("config", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Show and change settings.

    A setting comes from the first of: a flag, an environment variable, the settings file, the default.
    'llmrs help settings' explains the keys.

    \b
      llmrs config list
      llmrs config set device cpu
      llmrs config set context 8k
      llmrs config edit
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_settings, as_json=False)


@command.command("list")
@json_option
def list_settings(as_json: bool) -> None:
    """List every setting with its value and where that comes from."""
    terminal = Terminal.standard()
    settings = load_settings()
    found = {key: getattr(settings, key) for key in KEYS}
    if as_json:
        report = {key: {"value": entry.value, "origin": entry.origin} for key, entry in found.items()}
        terminal.data(json.dumps(report))
        return
    rows = [(key, _shown(entry.value) or "-", entry.origin) for key, entry in found.items()]
    for line in table([("KEY", "VALUE", "FROM"), *rows]):
        terminal.data(line)


@command.command("path")
def show_path() -> None:
    """Print the path of the settings file, which need not exist."""
    Terminal.standard().data(str(directories().config / SETTINGS_FILE))


@command.command("get")
@key_argument
@json_option
def get_setting(key: str, as_json: bool) -> None:
    """Print one setting; an empty line if it has no value."""
    entry = _setting(key)
    report = json.dumps({"value": entry.value, "origin": entry.origin})
    Terminal.standard().data(report if as_json else _shown(entry.value))


@command.command("set")
@key_argument
@click.argument("value", metavar="VALUE")
def set_setting(key: str, value: str) -> None:
    """Write one setting into the settings file.

    The rest of the file stays as it is.
    """
    from llmrs_cli.hub.own_names import set_default_model
    from llmrs_cli.hub.settings_file import change_setting

    folder = directories().config
    if key == "model":
        set_default_model(folder, value)
    else:
        change_setting(folder, key, _typed(key, value))
    warn_if_overruled(key)


@command.command("unset")
@key_argument
def unset_setting(key: str) -> None:
    """Go back to the default of one setting.

    It is taken out of the settings file.
    """
    from llmrs_cli.hub.settings_file import change_setting

    change_setting(directories().config, key, None)
    warn_if_overruled(key)


@command.command("edit")
def edit_settings() -> None:
    """Open the settings file in $VISUAL or $EDITOR.

    What is wrong with it afterwards is said.
    """
    folder = private_directory(directories().config)
    path = folder / SETTINGS_FILE
    if not path.exists():
        path.touch(mode=0o600)
    try:
        click.edit(filename=str(path))
    except click.ClickException as error:
        raise LlmrsError(f"The editor failed: {error.message}", hint="Set VISUAL or EDITOR.") from error
    load_settings(env={}, folder=folder)


def warn_if_overruled(key: str) -> None:
    """Say so if a variable keeps what the settings file says from taking effect."""
    origin = _setting(key).origin
    if origin in VARIABLES:
        Terminal.standard().warn(f"The variable {origin} is set, and wins over the settings file.")


def _setting(key: str) -> Setting[object]:
    entry = getattr(load_settings(), key)
    assert isinstance(entry, Setting), "a field of Settings"
    return entry


def _typed(key: str, text: str) -> object:
    """The value that was typed, as the settings file holds it."""
    match key:
        case "context":
            return tokens(text)
        case "device":
            return device(text)
        case "offline":
            return {"true": True, "false": False}.get(text.lower(), text)
        case _:
            return text


def _shown(value: object) -> str:
    """A value as it is typed; empty if there is none."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
