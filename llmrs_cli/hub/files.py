"""Files that appear whole or not at all, and names that stay inside their folder. Nothing here downloads.

A file is written under a unique name beside its target, checked, flushed to disk and renamed: whatever
dies in between, a reader sees the old state or the new one. File names from a listing are checked by the
rules of POSIX and Windows alike before they touch a path.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from llmrs_cli.errors import LlmrsError, ModelError, quoted

CHUNK = 1 << 20
"""Bytes read at a time."""

_PART = re.compile(r"[A-Za-z0-9._+\-=@(){}\[\], ]{1,255}")
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def safe_name(name: str) -> str:
    """`name` itself, if it names a file below a folder on every system; else ModelError.

    Refused: absolute, drive and UNC names, `..`, backslashes, control and other unusual characters,
    components that end in a dot or blank, device names, components over 255 bytes.
    """
    parts = name.split("/")
    if any(
        _DEVICES.fullmatch(part) or part[-1:] in (".", " ", "") or not _PART.fullmatch(part) for part in parts
    ):
        raise ModelError(f"The repository lists a file with an unsafe name: {quoted(name)}.")
    return name


def no_clashes(names: Iterable[str]) -> None:
    """Raise ModelError if two names differ in case only: on some systems they are one file."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise ModelError(
                f"The repository lists {quoted(other)} and {quoted(name)}, which are the same file on some systems."
            )


def size_text(count: int) -> str:
    """A number of bytes as people read it: "98 MB", "6.2 GB"."""
    if count < 1000:
        return f"{count} bytes"
    value, unit = count / 1000.0, "kB"
    for larger in ("MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000.0, larger
    return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_space(folder: Path, needed: int) -> None:
    """Raise LlmrsError unless the disk of `folder` has `needed` bytes left."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise _disk_full(folder, needed, free)


@contextmanager
def disk_errors(folder: Path, needed: int) -> Iterator[None]:
    """Turn a full or failing disk under `folder` into one sentence; `needed` is what was to be written."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(folder, needed, shutil.disk_usage(folder).free) from error
        raise LlmrsError(f"Cannot write to {quoted(str(folder), 200)}: {error.strerror}.") from error


def _disk_full(folder: Path, needed: int, free: int) -> LlmrsError:
    return LlmrsError(
        f"The disk of {quoted(str(folder), 200)} is full: {size_text(needed)} needed, {size_text(free)} free.",
        hint="Free some space, or set HF_HUB_CACHE or LLMRS_CACHE_DIR to a folder on another disk.",
    )


def publish(temporary: Path, target: Path) -> None:
    """Give a finished file its name: flush it, rename it over `target`, flush the folder."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(target)
    flush_folder(target.parent)


def flush_folder(folder: Path) -> None:
    """Make renames in `folder` last through a power cut, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(target: Path, content: bytes) -> None:
    """Write a small file so that readers see the old content or the new one."""
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        publish(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold the lock file `path`; yields whether another process had held it meanwhile.

    A courtesy that saves a second download: nothing becomes wrong where locks do not work.
    """
    with path.open("ab") as file:
        waited = False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = True
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # no locks on this file system
            pass
        yield waited
