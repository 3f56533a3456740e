"""Inputs and outputs as the file system has them: what is refused before any work, and outputs that are no
files (a device, a named pipe), into which lines go one write each."""

from __future__ import annotations

import os
import stat
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Self

from llmrs_cli.batch import durable
from llmrs_cli.errors import ModelError, UsageError, quoted


class PipeSink:
    """Lines into what keeps nothing for a resume: /dev/null, a terminal, a named pipe, a file without journal."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        """UsageError if it cannot be opened; a named pipe waits for its reader. `new`: an empty file is made,
        if it is one at all."""
        try:
            made = os.O_CREAT | os.O_TRUNC if new else 0
            self._file = os.open(path, os.O_WRONLY | os.O_CLOEXEC | made, 0o666)
        except OSError as error:
            raise UsageError(f"Cannot write {quoted(str(path))}: {error.strerror}.") from error

    def write(self, line: str) -> None:
        """Add one line; OSError if it cannot be written."""
        durable.write_all(self._file, line.encode("utf-8") + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)


def open_input(path: Path) -> BufferedReader:
    """The input file. Raises ModelError (status 5) if it is not there."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise ModelError(
            f"There is no file {quoted(str(path))}.", hint="Check the path; - reads stdin."
        ) from None
    except IsADirectoryError:
        raise UsageError(f"{quoted(str(path))} is a folder.", hint="Name a file of rows.") from None
    except OSError as error:
        raise ModelError(f"Cannot read {quoted(str(path))}: {error.strerror}.") from error


def check_output(output: Path, *others: Path) -> None:
    """Refuse an output that cannot be, before any work; `others` are files of the same run."""
    for other in others:
        if output == other or (output.exists() and other.exists() and output.samefile(other)):
            raise UsageError(
                f"{quoted(str(output))} is the same file as {quoted(str(other))}.", hint="Name another."
            )
    if output.is_dir():
        raise UsageError(f"{quoted(str(output))} is a folder.", hint="Name a file.")
    if not output.parent.is_dir():
        raise UsageError(f"There is no folder {quoted(str(output.parent))}.", hint="Make it first.")


def is_plain(path: Path) -> bool:
    """Whether writing there makes or replaces a file: not so for /dev/null, a terminal, a named pipe."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return True
