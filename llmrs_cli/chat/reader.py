"""Typed lines, with prompt-toolkit: editing, history, many lines at once. Only built on a terminal.

Enter sends, unless the text is still open (`commands.is_open`); a paste never sends. Ctrl-C raises
KeyboardInterrupt on an empty line and clears any other; Ctrl-D raises EOFError on an empty line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent

from llmrs_cli.chat.commands import is_open

PROMPT, CONTINUATION = "> ", ". "


class Reader:
    """Reads one message after another from the terminal."""

    def __init__(self, history: Path | None) -> None:
        """`history`: file of earlier lines (made for the user alone), or None to keep nothing."""
        self._session: PromptSession[str] = PromptSession(
            history=_history(history),
            multiline=True,
            key_bindings=_bindings(),
            prompt_continuation=CONTINUATION,
            enable_open_in_editor=True,
            enable_suspend=True,
        )

    def read(self) -> str:
        """The next text, as typed. Raises KeyboardInterrupt and EOFError (see above)."""
        return self._session.prompt(PROMPT)


def _history(path: Path | None) -> History:
    if path is None:
        return InMemoryHistory()
    try:
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
    except OSError:
        return InMemoryHistory()
    return _Utf8History(str(path))


class _Utf8History(FileHistory):
    """A history file that a stray byte or a full disk does not stop."""

    def load_history_strings(self) -> Iterable[str]:
        try:
            return list(super().load_history_strings())
        except OSError:
            return []

    def store_string(self, string: str) -> None:
        try:
            super().store_string(string.encode("utf-8", "replace").decode("utf-8"))
        except OSError:
            return


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    @bindings.add("c-j")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("c-c")
    def _clear(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt())

    return bindings
