"""Names that the user gives to models, and the model to use where none is named; both in the settings folder.

`aliases.toml` is a flat table, name → MODEL argument. It is ours to rewrite; `settings.toml` is not
(`hub.settings_file`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from llmrs_cli.config import private_directory
from llmrs_cli.errors import UsageError, quoted
from llmrs_cli.hub.aliases import ALIASES
from llmrs_cli.hub.files import write_whole
from llmrs_cli.hub.names import looks_like_path, parse_model
from llmrs_cli.hub.settings_file import change_setting, toml_value

NAMES_FILE = "aliases.toml"

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def read_names(folder: Path) -> dict[str, str]:
    """The user's names in the settings folder `folder`; UsageError if the file is not what it should be."""
    path = folder / NAMES_FILE
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"Cannot read {quoted(str(path), 200)}: {error}.") from error
    for name, target in table.items():
        if not isinstance(target, str) or not _NAME.fullmatch(name):
            raise UsageError(
                f'{quoted(str(path), 200)}: {quoted(name)} should be a line such as name = "owner/repo".'
            )
    return table


def add_name(folder: Path, name: str, target: str) -> None:
    """Let `name` stand for the MODEL argument `target`, a path made absolute.

    Raises UsageError if the name is not free or not one, ModelError if the target means nothing.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{quoted(name)} cannot be a name.", hint="Use small letters, digits, '.', '-' and '_'."
        )
    if name in ALIASES:
        raise UsageError(f"{quoted(name)} is a name already: {ALIASES[name].repo}.")
    names = read_names(folder)
    meant = parse_model(target, names)
    if meant.path is not None:
        target = str(meant.path.absolute())
    elif target in names:  # a name for a name would outlive it
        target = names[target]
    _write_names(folder, {**names, name: target})


def remove_name(folder: Path, name: str) -> None:
    """Forget `name`; UsageError if it is not one of the user's."""
    names = read_names(folder)
    if name not in names:
        raise UsageError(f"{quoted(name)} is not a name of yours.", hint="'llmrs alias list' shows them.")
    _write_names(folder, {key: value for key, value in names.items() if key != name})


def set_default_model(folder: Path, target: str) -> None:
    """Write `target` into the settings file as the model to use where none is named."""
    meant = parse_model(target, read_names(folder))
    if meant.path is not None and looks_like_path(target):
        target = str(meant.path.absolute())
    change_setting(folder, "model", target)


def _write_names(folder: Path, names: Mapping[str, str]) -> None:
    lines = [f"{toml_value(name)} = {toml_value(target)}\n" for name, target in sorted(names.items())]
    path, text = private_directory(folder) / NAMES_FILE, "".join(lines)
    try:
        tomllib.loads(text)
        content = text.encode()
    except ValueError as error:
        raise UsageError(f"Cannot change {quoted(str(path), 200)}.", hint="Edit it by hand.") from error
    write_whole(path, content)
