"""A program in a pseudo-terminal, its screen as a person would see it (pyte), and keys to press."""

from __future__ import annotations

import fcntl
import os
import resource
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import pyte

PATIENCE = 60.0
"""Seconds until something that must appear is missed; nothing waits that long unless it fails."""
_SIZE = ("COLUMNS", "LINES")
"""Somebody else's terminal, as test runners may have set them; they would win over ours."""
_START = (
    "import fcntl, sys, termios\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "from llmrs_cli.cli.root import main\n"
    "sys.argv[0] = 'llmrs'\n"
    "main()\n"
)


class ScreenSession:
    """`llmrs` with arguments on a terminal of its own; used in a `with` block, which ends it."""

    def __init__(
        self,
        args: list[str],
        env: Mapping[str, str],
        *,
        columns: int = 80,
        lines: int = 24,
        open_files: int | None = None,
    ) -> None:
        """`open_files`: how many files the program may have open (Linux alone)."""
        self.raw = b""
        """Every byte that the program wrote."""
        self._screen = pyte.HistoryScreen(columns, lines, history=10_000)
        self._screen.write_process_input = self._answer  # type: ignore[method-assign, assignment]
        self._stream = pyte.ByteStream(self._screen)
        self._master, slave = os.openpty()
        self.resize(columns, lines)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={name: value for name, value in env.items() if name not in _SIZE},
            start_new_session=True,
        )
        os.close(slave)
        if open_files is not None:
            resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, (open_files, open_files))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def press(self, keys: str) -> None:
        """Send keys: letters, or control characters and sequences as a terminal sends them."""
        os.write(self._master, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        """Change the size of the terminal; the program is told by the kernel."""
        self._screen.resize(lines, columns)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    @property
    def text(self) -> str:
        """The screen, one line of text a row, without blanks at the end."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    @property
    def last_line(self) -> str:
        """The row that the cursor is in."""
        return str(self._screen.display[self._screen.cursor.y]).rstrip()

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Read until `condition` holds; AssertionError with the screen if it never does."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if not self._read(deadline - time.monotonic()):
                raise AssertionError(f"no {what} on the screen:\n{self.text}")

    def wait_for(self, text: str) -> None:
        """Read until `text` is on the screen."""
        self.wait(lambda: text in self.text, repr(text))

    def wait_for_prompt(self) -> None:
        """Read until an empty prompt waits."""
        self.wait(lambda: self.last_line in (">", "> "), "prompt")

    def skip_to(self, mark: bytes) -> bytes:
        """Read on until `mark`; what came before it is returned, and not drawn, which would take its time."""
        seen = b""
        while mark not in seen:
            data = self._receive(PATIENCE)
            assert data, f"no {mark!r} behind {seen[-500:]!r}"
            seen += data
        before, _, rest = seen.partition(mark)
        self._stream.feed(mark + rest)
        return before

    def end(self) -> int:
        """Read to the end; the exit status."""
        while self._read(PATIENCE):
            pass
        return self._process.wait(PATIENCE)

    def _read(self, seconds: float) -> bool:
        """Take in what comes within `seconds`; False if nothing does or the program has ended."""
        data = self._receive(seconds)
        self._stream.feed(data)
        return bool(data)

    def _receive(self, seconds: float) -> bytes:
        ready = select.poll()  # `select.select` knows no descriptor above 1,023
        ready.register(self._master, select.POLLIN)
        if not ready.poll(max(seconds, 0) * 1000):
            return b""
        try:
            data = os.read(self._master, 65536)
        except OSError:  # Linux says so when the other side is closed
            return b""
        self.raw += data
        return data

    def _answer(self, text: str) -> None:
        os.write(self._master, text.encode())
