"""The only writer to a terminal: answers and data to stdout, everything else to stderr.

stdout carries UTF-8 whatever the locale: byte for byte in a pipe or file, with control sequences filtered on
a terminal. stderr carries thinking, notices and progress; it is always filtered, and animates (`cli.status`)
only where it is a terminal. Nothing here decides what is said.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from llmrs_cli.cli.control import ControlFilter, clean
from llmrs_cli.cli.status import Status
from llmrs_cli.config import load_settings
from llmrs_cli.errors import LlmrsError

if TYPE_CHECKING:
    from llmrs_cli.chat.markdown import MarkdownPainter

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
        wanted = {"always": True, "never": False}.get(color)
        self._colour = self._animate if wanted is None else wanted
        self.out_colour = self.out_is_terminal and not dumb if wanted is None else wanted
        """Whether what is written to stdout may carry colour."""
        self._painter: MarkdownPainter | None = None
        self._hide_thinking = False
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

    def hide_thinking(self) -> None:
        """From now on thoughts are not shown."""
        self._hide_thinking = True

    def paint_markdown(self) -> None:
        """From now on answers are Markdown, if stdout is a terminal with colour; a pipe gets what was said."""
        from llmrs_cli.chat.markdown import MarkdownPainter

        if self.out_is_terminal and self.out_colour:
            self._painter = MarkdownPainter(lambda: self.columns)

    def answer(self, text: str) -> None:
        """A piece of model text, shown at once."""
        shown = self._filter.feed(text) if self.out_is_terminal else text
        self._show(self._painter.feed(shown) if self._painter is not None else shown)

    def recall(self, text: str) -> None:
        """The beginning of an answer that goes on: its last line is shown once more."""
        shown = self._filter.feed(text) if self.out_is_terminal else text
        self._show(self._painter.recall(shown) if self._painter is not None else shown.rpartition("\n")[2])

    def end_answer(self) -> None:
        """End the answer's last line, if the model did not."""
        self._filter = ControlFilter()
        if self._painter is not None:
            self._show(self._painter.finish())
            self.paint_markdown()
        if self._out_open:
            self._write_out("\n")
            self._out_open = False

    def _show(self, text: str) -> None:
        if not text:
            return
        with self._lock:
            self._end_err_line()
            self._write_out(text)
            self._out_open = not text.endswith("\n")

    def clipboard(self, text: str) -> None:
        """Ask the terminal to take `text` into its clipboard (OSC 52)."""
        with self._lock:
            encoded = base64.b64encode(to_utf8(text)).decode("ascii")
            self._write_err(f"\x1b]52;c;{encoded}\x07")

    def data(self, line: str) -> None:
        """One line of data without its newline; a pipe gets it as it is."""
        shown = clean(line) if self.out_is_terminal else line
        with self._lock:
            self._erase_status()
            self._write_out(shown + "\n")

    # -- stderr -----------------------------------------------------------------------------------

    def thinking(self, text: str) -> None:
        """A piece of what the model thinks aloud, dim."""
        if self._hide_thinking:
            return
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
            self._line(clean(text), dim=True)

    def ask(self, question: str) -> str:
        """What is typed after `question`, which stands on stderr; empty at the end of input."""
        with self._lock:
            self._erase_status()
            self._end_err_line()
            self._write_err(clean(question))
        return sys.stdin.readline() if sys.stdin is not None else ""

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Within, the terminal does not echo what is typed; it is not lost, and Enter stays Enter."""
        if sys.stdin is None or not (_is_terminal(sys.stdin) and self.out_is_terminal):
            yield
            return
        import termios

        handle = sys.stdin.fileno()
        before = termios.tcgetattr(handle)
        silent = [
            before[0] & ~termios.ICRNL,
            *before[1:3],
            before[3] & ~termios.ECHO,
            *before[4:],
        ]
        termios.tcsetattr(handle, termios.TCSANOW, silent)
        try:
            yield
        finally:
            termios.tcsetattr(handle, termios.TCSANOW, before)

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

    def _line(self, text: str, *, dim: bool = False) -> None:
        with self._lock:
            self._erase_status()
            self._end_err_line()
            if self._out_open and self.out_is_terminal and self.err_is_terminal:
                self._write_err("\n")
                self._out_open = False
            text = fold(text, self.columns) if self.err_is_terminal else text
            self._write_err((self._dim(text) if dim else text) + "\n")

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


def fold(text: str, columns: int) -> str:
    """`text` with its lines broken between words to fit a terminal; columns of a table keep their place."""
    return "\n".join(_fold_line(line, max(columns - 1, 20)) for line in text.split("\n"))


def _fold_line(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    gap = re.search(r"\S {2,}(?=\S)", line)
    hang = len(line) - len(line.lstrip())
    if gap:
        hang = gap.end() if gap.end() <= width // 2 else hang + 4
    return textwrap.fill(
        line,
        width,
        subsequent_indent=" " * hang,
        replace_whitespace=False,
        break_on_hyphens=False,
        break_long_words=False,
    )


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
