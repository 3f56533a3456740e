"""The text of a one-shot question: the prompt, a blank line, then files and what is piped in.

Everything must be UTF-8; a byte that is not is refused by name and never reaches the tokenizer. Reading
waits as long as the writer takes, and says so after a second.
"""

from __future__ import annotations

import io
import os
import select
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from llmrs_cli.errors import LlmrsError, ModelError, UsageError, quoted

MAX_BYTES = 64 * 2**20
"""Of one file, and of what is piped in."""
PATIENCE = 1.0
"""Seconds without input before we say that we are reading."""


def compose(prompt: str | None, attachments: Sequence[str]) -> str:
    """Prompt first, then each attachment after a blank line; empty parts are left out."""
    parts = [prompt or "", *(text.strip("\n") for text in attachments)]
    return "\n\n".join(part for part in parts if part.strip())


def read_file(path: str) -> str:
    """A text file. Raises UsageError if it is not text, ModelError (status 5) if it cannot be read."""
    try:
        with Path(path).expanduser().open("rb") as file:
            return _decode(file.read(MAX_BYTES + 1), quoted(path))
    except FileNotFoundError:
        raise ModelError(f"There is no file {quoted(path)}.", hint="Check the path.") from None
    except IsADirectoryError:
        raise UsageError(f"{quoted(path)} is a folder.", hint="Name the files in it, each with -f.") from None
    except OSError as error:
        raise ModelError(f"Cannot read {quoted(path)}: {error.strerror}.") from error


def is_piped(stream: TextIO | None) -> bool:
    """Whether `stream` is a pipe, a socket or a file: something that was put there to be read."""
    try:
        mode = os.fstat(stream.fileno()).st_mode if stream is not None else 0
    except (OSError, ValueError, io.UnsupportedOperation):
        return stream is not None and not stream.closed  # a stand-in for a stream, with text in it
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def read_stdin(stream: TextIO | None, on_wait: Callable[[], None]) -> str:
    """All of `stream`; calls `on_wait` once if nothing arrives for a second."""
    if stream is None:
        return ""
    if not _has_input(stream):
        on_wait()
    try:
        return _decode(stream.buffer.read(MAX_BYTES + 1), "stdin")
    except OSError as error:
        raise LlmrsError(f"Cannot read stdin: {error.strerror}.") from error


def _has_input(stream: TextIO) -> bool:
    """Whether reading would return at once; a stream that cannot say so counts as ready."""
    try:
        return bool(select.select([stream.fileno()], [], [], PATIENCE)[0])
    except (OSError, ValueError, io.UnsupportedOperation):
        return True


def _decode(data: bytes, name: str) -> str:
    if len(data) > MAX_BYTES:
        raise UsageError(f"The text of {name} is larger than {MAX_BYTES >> 20} MiB.")
    try:
        return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"The text of {name} is not UTF-8: byte {error.start + 1} is 0x{data[error.start]:02X}.",
            hint="Convert it first, for instance with iconv.",
        ) from None
