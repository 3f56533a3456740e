"""Typed lines, with prompt-toolkit: editing, history, many lines at once. Only built on a terminal.

Enter sends, unless the text is still open (`commands.is_open`); a paste never sends. Ctrl-C raises
KeyboardInterrupt on an empty line and clears any other; Ctrl-D raises EOFError on an empty line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.styles import Style

from llmrs_cli.chat.attach import Typed
from llmrs_cli.chat.commands import is_open

PROMPT = "\n> "
_STYLE = Style.from_dict(
    {
        "bottom-toolbar": "noreverse",
        "bottom-toolbar.text": "noreverse",
        "completion-menu": "noinherit",
        "completion-menu.completion": "noinherit",
        "completion-menu.completion.current": "noinherit reverse",
        "completion-menu.meta.completion": "noinherit",
        "completion-menu.meta.completion.current": "noinherit reverse",
    }
)
"""No colour but the theme's own two, which can be read on dark and on light ground alike."""


class Reader:
    """Reads one message after another from the terminal."""

    def __init__(
        self,
        history: Path | None,
        *,
        vi: bool = False,
        colour: bool = True,
    ) -> None:
        """`history`: file of earlier lines (made for the user alone), or None to keep nothing."""
        self._pasted: list[str] = []
        self._history = _history(history)
        self._session: PromptSession[str] = PromptSession(
            history=self._history,
            multiline=True,
            key_bindings=_bindings(self._pasted),
            prompt_continuation=_continuation,
            complete_while_typing=False,
            complete_in_thread=True,
            complete_style=CompleteStyle.MULTI_COLUMN if colour else CompleteStyle.READLINE_LIKE,
            reserve_space_for_menu=4,
            style=_STYLE,
            color_depth=None if colour else ColorDepth.MONOCHROME,
            editing_mode=EditingMode.VI if vi else EditingMode.EMACS,
            enable_open_in_editor=True,
            enable_suspend=True,
        )

    def read(self) -> Typed:
        """The next text, as typed. Raises KeyboardInterrupt and EOFError (see above)."""
        text = self._session.prompt(PROMPT)
        return Typed(text, tuple(part for part in self._pasted if part in text))

    def dress(self, completer: Completer, toolbar: Callable[[], str]) -> None:
        """What Tab offers, and the line at the foot of the terminal, which is asked for at every key."""
        self._session.completer = completer
        self._session.bottom_toolbar = toolbar

    def use_vi(self, on: bool) -> None:
        """vi keys, else emacs keys."""
        self._session.editing_mode = EditingMode.VI if on else EditingMode.EMACS

    def typed(self) -> list[str]:
        """Earlier lines, the last one at the end."""
        return list(self._history.get_strings())

    def forget(self) -> None:
        """Empty the history, on disk as well."""
        if isinstance(self._history, _Utf8History):
            self._history.empty()
        self._history._loaded_strings = []
        self._session.default_buffer.reset()


def _continuation(width: int, line: int, wraps: int) -> str:
    """In front of a further line; a line that is only too long for the terminal gets no dot."""
    return " " * width if wraps else ". ".rjust(width)


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

    def empty(self) -> None:
        try:
            os.truncate(self.filename, 0)
        except OSError:
            return


def _bindings(pasted: list[str]) -> KeyBindings:
    """Keys of ours; what comes from the clipboard is noted in `pasted`."""
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

    @bindings.add(Keys.BracketedPaste)
    def _paste(event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        pasted.append(text)
        event.current_buffer.insert_text(text)

    @bindings.add("escape", *"[201~")
    def _end_of_no_paste(event: KeyPressEvent) -> None:
        """The end of a paste that had an end in its middle: no text."""

    @bindings.add("c-g")
    def _editor(event: KeyPressEvent) -> None:
        event.current_buffer.open_in_editor()

    @bindings.add("c-c")
    def _clear(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt())

    return bindings
