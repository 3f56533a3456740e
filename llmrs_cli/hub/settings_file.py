"""Changes one line of `settings.toml`; the rest of the file is the user's and stays, comments included."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from llmrs_cli.config import SETTINGS_FILE, checked, load_settings, private_directory
from llmrs_cli.errors import UsageError, quoted
from llmrs_cli.hub.files import write_whole


def change_setting(folder: Path, key: str, value: object) -> None:
    """Set `key` to `value` in the settings file of `folder`; None takes its line out.

    Raises UsageError for an unknown key or a value of the wrong kind, and for a file that is broken or
    written in a way that a change of one line cannot follow.
    """
    if value is not None:
        checked(key, value, "the new value")
    load_settings(env={}, folder=folder)  # a broken file is said to be so, not made worse
    path = (private_directory(folder) / SETTINGS_FILE).resolve()  # what a link points to, not the link
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    after = _with_line(before, key, None if value is None else f"{key} = {toml_value(value)}\n")
    wanted = {**tomllib.loads(before), key: value}
    if not _says(after, {name: entry for name, entry in wanted.items() if entry is not None}):
        raise UsageError(f"Cannot change {key!r} in {quoted(str(path), 200)}.", hint="Edit it by hand.")
    if after != before:
        write_whole(path, after.encode())


def toml_value(value: object) -> str:
    """A string, whole number or truth value as TOML writes it: as JSON does, without surrogate pairs."""
    return json.dumps(value, ensure_ascii=False)


def _with_line(text: str, key: str, line: str | None) -> str:
    """`text` with `line` where `key` stands, at the top if it stands nowhere; None: without it."""
    pattern = re.compile(rf"""^[ \t]*["']?{re.escape(key)}["']?[ \t]*=.*\n?""", re.MULTILINE)
    if line is not None and not pattern.search(text):
        return line + text
    return pattern.sub(lambda _: line or "", text, count=1)


def _says(text: str, wanted: dict[str, object]) -> bool:
    try:
        text.encode()  # a name that is not UTF-8 cannot stand in TOML
        return tomllib.loads(text) == wanted
    except ValueError:
        return False
