"""Saved sessions: one private JSON file each, replaced whole, so that a crash leaves the old or the new one.

A file is NAME.json in the sessions folder; the time of its last change orders sessions. Nothing in it is
ever run, and no path is taken from it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain, count
from pathlib import Path
from typing import Any

from llmrs_cli.chat.conversation import Conversation, from_json
from llmrs_cli.config import private_directory
from llmrs_cli.errors import LlmrsError, ModelError, UsageError, quoted

_NAME = re.compile(r"[\w][\w.-]{0,99}")
_HEAD = 64
"""Characters of a first question that a listing shows."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A session as a listing shows it."""

    name: str
    model: str
    changed: float
    """Seconds since the epoch."""
    turns: int
    title: str
    """How the first question begins, in one line."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A session to go on with."""

    name: str
    model: str
    conversation: Conversation


class SessionStore:
    """The sessions in one folder, which is made for the user alone when something is saved."""

    def __init__(self, state: Path) -> None:
        """`state`: folder of the user's state (`config.directories().state`)."""
        self._folder = state / "sessions"

    def fresh_name(self) -> str:
        """A name from the clock that no session has."""
        stem = time.strftime("%Y%m%d-%H%M%S")
        taken = {path.stem for path in self._files()}
        names = chain([stem], (f"{stem}-{number}" for number in count(2)))
        return next(name for name in names if name not in taken)

    def save(self, name: str, model: str, conversation: Conversation) -> None:
        """Write the session, in place of what was saved under the name. Raises LlmrsError if it cannot."""
        path = self._path(name)
        text = json.dumps({"model": model, **conversation.to_json()}, ensure_ascii=False)
        private_directory(self._folder)
        fresh = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:  # noqa: PTH123
                file.write(text.encode("utf-8", "replace"))
            fresh.replace(path)
        except OSError as error:
            with suppress(OSError):
                fresh.unlink()
            raise LlmrsError(f"Cannot save the session: {error.strerror}.") from error

    def load(self, name: str) -> Loaded:
        """The session `name`. Raises ModelError if there is none, UsageError if it is damaged."""
        value = self._read(self._path(name), name)
        model = value.get("model") if isinstance(value, Mapping) else None
        return Loaded(name, model if isinstance(model, str) else "", from_json(value))

    def exists(self, name: str) -> bool:
        """Whether a session has this name."""
        return self._path(name).is_file()

    def similar(self, name: str) -> str | None:
        """The session whose name is the most like this one, if any is."""
        near = get_close_matches(name, self.names(), n=1)
        return near[0] if near else None

    def latest(self) -> Loaded | None:
        """The session that was changed last."""
        files = self._files()
        return self.load(files[-1].stem) if files else None

    def listing(self) -> tuple[Saved, ...]:
        """Every session that can be read, the one that was changed last at the end."""
        found = []
        for path in self._files():
            try:
                loaded = self.load(path.stem)
                found.append(_saved(loaded, path.stat().st_mtime))
            except (LlmrsError, OSError):
                continue
        return tuple(found)

    def remove(self, name: str) -> None:
        """Delete the session. Raises ModelError if there is none."""
        try:
            self._path(name).unlink()
        except FileNotFoundError:
            raise _missing(name) from None
        except OSError as error:
            raise LlmrsError(f"Cannot remove the session {quoted(name)}: {error.strerror}.") from error

    def rename(self, old: str, new: str) -> None:
        """Give a session another name. Raises UsageError if that one is taken."""
        if self.exists(new):
            raise UsageError(f"There is a session {quoted(new)} already.", hint="Choose another name.")
        if self.exists(old):
            self._path(old).rename(self._path(new))

    def names(self) -> tuple[str, ...]:
        """Of every file, readable or not, the one that was changed last at the end."""
        return tuple(path.stem for path in self._files())

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{quoted(name)} cannot be the name of a session.",
                hint="Use letters, digits, '.', '-' and '_'.",
            )
        return self._folder / f"{name}.json"

    def _files(self) -> list[Path]:
        dated = []
        for path in self._folder.glob("*.json"):
            try:
                dated.append((path.stat().st_mtime_ns, path))
            except OSError:  # removed meanwhile
                continue
        return [path for _, path in sorted(dated)]

    def _read(self, path: Path, name: str) -> Any:
        try:
            return json.loads(path.read_bytes())
        except FileNotFoundError:
            raise _missing(name) from None
        except OSError as error:
            raise ModelError(f"Cannot read the session {quoted(name)}: {error.strerror}.") from error
        except (ValueError, RecursionError):
            raise UsageError(f"The session {quoted(name)} is damaged.") from None


def _missing(name: str) -> ModelError:
    return ModelError(f"There is no session {quoted(name)}.", hint="'llmrs sessions list' names them.")


def _saved(loaded: Loaded, changed: float) -> Saved:
    turns = loaded.conversation.turns
    title = " ".join(turns[0].question.split()) if turns else ""
    title = title if len(title) <= _HEAD else title[: _HEAD - 3] + "..."
    return Saved(loaded.name, loaded.model, changed, len(turns), title)
