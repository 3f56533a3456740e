"""One data file of a model: what it really is, its size, and reads by position that cannot crash.

Files are read into memory of our own and never mapped: a file that somebody truncates meanwhile gives a
short read and one sentence, where a mapping would kill the process. Every read checks that the file is
still the one that was opened. Nothing here knows a format; JSON objects are parsed here because every
format has some.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.errors import DoesNotFitError, ModelError, quoted

Bytes = NDArray[np.uint8]
Stamp = tuple[int, int, int]
"""Of a file: inode, size, time of the last change in ns."""
CHUNK = 1 << 26
"""Bytes asked of the system at once."""
MAX_JSON = 64 << 20
"""No configuration or tokenizer is larger."""
FETCH_AGAIN = "Fetch the file again."

_FOREIGN = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file it stands for"),
    (b"<!doctype html", "an HTML page"),
    (b"<html", "an HTML page"),
    (b"pk\x03\x04", "a PyTorch pickle or zip archive, which we never open"),
    (b"\x80\x02\x8a\x0al", "a Python pickle, which we never open"),
    (b"gguf", "a GGUF file"),
)


def shown(path: Path) -> str:
    """A path as it may stand in a message."""
    return quoted(str(path), 240)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A regular file and what it was when it was opened; every read opens it anew."""

    path: Path
    size: int
    stamp: Stamp

    @classmethod
    def open(cls, path: Path) -> DataFile:
        """Raises ModelError if `path` is missing, unreadable or not a regular file."""
        try:
            found = path.stat()
        except OSError as error:
            raise ModelError(f"{shown(path)} cannot be opened: {reason(error)}.") from error
        if not stat.S_ISREG(found.st_mode):
            raise ModelError(f"{shown(path)} is not a file.")
        return cls(path, found.st_size, _stamp(found))

    def read(self, offset: int, count: int) -> Bytes:
        """`count` bytes from `offset` on, in memory that nobody else holds.

        Raises ModelError if they are not there or the file has changed, DoesNotFitError without memory.
        """
        assert offset >= 0 and count >= 0
        if offset + count > self.size:
            raise ModelError(f"{shown(self.path)} ends after {self.size} bytes.", hint=FETCH_AGAIN)
        try:
            data = np.empty(count, np.uint8)
        except MemoryError as error:
            raise DoesNotFitError(
                f"{count / 1e9:.1f} GB of {shown(self.path)} do not fit in memory."
            ) from error
        try:
            self._fill(data, offset)
        except OSError as error:
            raise ModelError(f"{shown(self.path)} cannot be read: {reason(error)}.") from error
        return data

    def _fill(self, data: Bytes, offset: int) -> None:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._check(descriptor)
            view = data.data
            done = 0
            while done < len(view):
                got = os.preadv(descriptor, [view[done : done + CHUNK]], offset + done)
                if not got:
                    break
                done += got
            self._check(descriptor)
        finally:
            os.close(descriptor)

    def _check(self, descriptor: int) -> None:
        if _stamp(os.fstat(descriptor)) != self.stamp:
            raise ModelError(f"{shown(self.path)} was changed while it was being read.")

    def foreign(self) -> str | None:
        """What the file is if it is plainly something else than weights in a format of ours."""
        if not self.size:
            return "empty"
        head = self.read(0, min(self.size, 64)).tobytes().lower()
        text = head.lstrip()
        return next(
            (what for magic, what in _FOREIGN if (text if magic[:1] == b"<" else head).startswith(magic)),
            None,
        )


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_ino, found.st_size, found.st_mtime_ns


def reason(error: OSError) -> str:
    """The system's words for an error, without numbers and paths."""
    return (error.strerror or "unknown error").lower()


def parse_object(data: bytes, source: str, *, unique: bool = False) -> dict[str, object]:
    """The JSON object in `data`; with `unique`, a name that occurs twice is refused at any depth.

    Raises ModelError naming `source` for anything else, whatever the bytes.
    """

    def no_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for name, value in pairs:
            if name in found:
                raise ModelError(f"{source} has two entries named {quoted(name)}.")
            found[name] = value
        return found

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=no_twins if unique else None)
    except UnicodeDecodeError as error:
        raise ModelError(f"{source} is not UTF-8 text.", hint=FETCH_AGAIN) from error
    except RecursionError as error:
        raise ModelError(f"{source} is nested too deeply.") from error
    except ValueError as error:
        raise ModelError(f"{source} is not valid JSON.", hint=FETCH_AGAIN) from error
    if not isinstance(value, dict):
        raise ModelError(f"{source} is not a JSON object.")
    return value


def read_object(path: Path, *, unique: bool = False) -> dict[str, object]:
    """The JSON object in a file of at most MAX_JSON bytes."""
    return parse_object(read_small(path), shown(path), unique=unique)


def read_small(path: Path) -> bytes:
    """A whole file of at most MAX_JSON bytes."""
    file = DataFile.open(path)
    if file.size > MAX_JSON:
        raise ModelError(f"{shown(path)} is too large: {file.size} bytes.")
    if (what := file.foreign()) is not None:
        raise ModelError(f"{shown(path)} is {what}.", hint=FETCH_AGAIN)
    return file.read(0, file.size).tobytes()
