"""The only writer to a terminal: answers and data to stdout, everything else to stderr.

stdout carries UTF-8 whatever the locale: byte for byte in a pipe or file, with control sequences filtered on
a terminal. stderr carries thinking, notices and progress; it is always filtered, and animates (`cli.status`)
only where it is a terminal. Nothing here decides what is said.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from llmrs_cli.cli.control import ControlFilter, clean
from llmrs_cli.cli.status import Status
from llmrs_cli.config import load_settings
from llmrs_cli.errors import LlmrsError

DIM, RESET = "\x1b[2m", "\x1b[0m"
_SURROGATE = re.compile("[\ud800-\udfff]")


class Terminal:
    """stdout and stderr of one command.

    A line may be left unfinished on either stream (an answer that streams, thinking); whatever is written
    next to the other stream first ends it, if both are terminals.
    """

    def __init__(
        self, out: TextIO | None, err: TextIO | None, *, color: str = "auto", dumb: bool = False
    ) -> None:
        self._out, self._err = out, err
        self.out_is_terminal = _is_terminal(out)
        self.err_is_terminal = _is_terminal(err)
        self.quiet = False
        self._animate = self.err_is_terminal and not dumb
        self._colour = {"always": True, "never": False}.get(color, self._animate)
        self._filter = ControlFilter()
        self._thoughts = ControlFilter()
        self._out_open = self._err_open = self._status_shown = False
        self._lock = threading.RLock()

    @classmethod
    def standard(cls, *, quiet: bool = False) -> Terminal:
        """The streams of this process as they stand now, coloured as the settings say."""
        dumb = os.environ.get("TERM") == "dumb"
        terminal = cls(sys.stdout, sys.stderr, color=load_settings().color.value, dumb=dumb)
        terminal.quiet = quiet
        return terminal

    @property
    def columns(self) -> int:
        """Width of the terminal in cells."""
        return shutil.get_terminal_size().columns

    # -- stdout -----------------------------------------------------------------------------------

    def answer(self, text: str) -> None:
        """A piece of model text, shown at once."""
        shown = self._filter.feed(text) if self.out_is_terminal else text
        if not shown:
            return
        with self._lock:
            self._end_err_line()
            self._write_out(shown)
            self._out_open = not shown.endswith("\n")

    def end_answer(self) -> None:
        """End the answer's last line, if the model did not."""
        self._filter = ControlFilter()
        if self._out_open:
            self._write_out("\n")
            self._out_open = False

    def data(self, line: str) -> None:
        """One line of data without its newline; a pipe gets it as it is."""
        shown = clean(line) if self.out_is_terminal else line
        with self._lock:
            self._erase_status()
            self._write_out(shown + "\n")

    # -- stderr -----------------------------------------------------------------------------------

    def thinking(self, text: str) -> None:
        """A piece of what the model thinks aloud, dim."""
        shown = self._thoughts.feed(text)
        with self._lock:
            self._write_err(self._dim(shown) if shown else "")
            if shown:
                self._err_open = not shown.endswith("\n")

    def notice(self, text: str) -> None:
        """A line that is good to know; `--quiet` drops it."""
        if not self.quiet:
            self.warn(text)

    def warn(self, text: str) -> None:
        """A line that nothing may drop."""
        self._line(f"llmrs: {clean(text)}")

    def say(self, text: str) -> None:
        """What a command of a conversation answers; may be several lines."""
        self._line(clean(text))

    def stats(self, text: str) -> None:
        """A dim line of figures."""
        if not self.quiet:
            self._line(self._dim(clean(text)))

    def ask(self, question: str) -> str:
        """What is typed after `question`, which stands on stderr; empty at the end of input."""
        with self._lock:
            self._erase_status()
            self._end_err_line()
            self._write_err(clean(question))
        return sys.stdin.readline() if sys.stdin is not None else ""

    @contextmanager
    def working(self, text: str) -> Iterator[Status]:
        """Say that something takes its time: an animated line on a terminal, else one line after 2 s."""
        status = Status(clean(text), self._show_status, animate=self._animate)
        if self._err is None or self.quiet:
            yield status
            return
        with status:
            yield status

    # -- inside -----------------------------------------------------------------------------------

    def _show_status(self, text: str | None, final: bool) -> None:
        """Draw (or with None erase) the status line; a final text is a line of its own."""
        with self._lock:
            self._erase_status()
            if final:
                self._line(f"llmrs: {text}")
            elif text is not None:
                self._write_err(self._dim(text[: max(self.columns - 1, 1)]))
                self._status_shown = True

    def _line(self, text: str) -> None:
        with self._lock:
            self._erase_status()
            self._end_err_line()
            if self._out_open and self.out_is_terminal and self.err_is_terminal:
                self._write_err("\n")
                self._out_open = False
            self._write_err(text + "\n")

    def _erase_status(self) -> None:
        if self._status_shown:
            self._write_err("\r\x1b[K")
            self._status_shown = False

    def _end_err_line(self) -> None:
        if self._err_open:
            self._write_err("\n")
            self._err_open = False

    def _dim(self, text: str) -> str:
        return f"{DIM}{text}{RESET}" if self._colour else text

    def _write_out(self, text: str) -> None:
        if self._out is None:
            raise LlmrsError("stdout is closed.", hint="Redirect it to /dev/null to drop the answer.")
        self._out.buffer.write(to_utf8(text))
        self._out.flush()

    def _write_err(self, text: str) -> None:
        """Losing a message must not lose the answer: a stderr that cannot be written is let be."""
        if self._err is None or not text:
            return
        try:
            self._err.write(text)
            self._err.flush()
        except OSError:
            self._err = None


def to_utf8(text: str) -> bytes:
    """The bytes of a text; a lone surrogate, which has none, becomes U+FFFD."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text).encode("utf-8")


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False
