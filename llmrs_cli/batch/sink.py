"""Where output lines go: a file of its own, or a stream that is already open. One write a line.

The seam for a journal: a run only knows `write`, and asks for nothing back.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from llmrs_cli.errors import ModelError, UsageError, quoted


class FileSink:
    """Lines into a file, each complete and visible to readers before the next begins."""

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        """Open `path`, which must be new unless `overwrite`; see `check_output`, which does not open it."""
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if overwrite or not _is_plain(path) else os.O_EXCL)
        try:
            self._file = os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o666)
        except FileExistsError:
            raise _exists(path) from None
        except OSError as error:
            raise UsageError(f"Cannot write {quoted(str(path))}: {error.strerror}.") from error

    def write(self, line: str) -> None:
        """Add one line; OSError if the disk is full."""
        data = memoryview(line.encode("utf-8") + b"\n")
        while data:
            data = data[os.write(self._file, data) :]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)


def open_input(path: Path) -> BinaryIO:
    """The input file. Raises ModelError (status 5) if it is not there."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise ModelError(
            f"There is no file {quoted(str(path))}.", hint="Check the path; - reads stdin."
        ) from None
    except IsADirectoryError:
        raise UsageError(f"{quoted(str(path))} is a folder.", hint="Name a file of JSON lines.") from None
    except OSError as error:
        raise ModelError(f"Cannot read {quoted(str(path))}: {error.strerror}.") from error


def check_output(output: Path, source: Path | None, *, overwrite: bool) -> None:
    """Refuse an output that would destroy something, before any work; `source` is the input file."""
    if source is not None and output.exists() and output.samefile(source):
        raise UsageError("Input and output are the same file.", hint="Name another file with -o.")
    if output.is_dir():
        raise UsageError(f"{quoted(str(output))} is a folder.", hint="Name a file with -o.")
    if not output.parent.is_dir():
        raise UsageError(f"There is no folder {quoted(str(output.parent))}.", hint="Make it first.")
    if _is_plain(output) and output.exists() and not overwrite:
        raise _exists(output)


def _is_plain(path: Path) -> bool:
    """Whether writing there makes or replaces a file: not so for /dev/null, a terminal, a named pipe."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return True


def _exists(path: Path) -> UsageError:
    return UsageError(f"{quoted(str(path))} exists.", hint="--overwrite replaces it.")


Write = Callable[[str], None]
"""Takes one output line."""
