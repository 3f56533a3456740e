"""Files that appear whole or not at all, and names that stay inside their folder. Nothing here downloads.

A file is written under a unique name beside its target, checked, flushed to disk and renamed: whatever
dies in between, a reader sees the old state or the new one. File names from a listing are checked by the
rules of POSIX and Windows alike before they touch a path.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from llmrs_cli.errors import LlmrsError, ModelError, quoted

CHUNK = 1 << 20
"""Bytes read at a time."""

_UNPORTABLE = re.compile(r'[<>:"|?*]')
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_DRIVE = re.compile(r"[A-Za-z]:")


def refuse_escape(name: str) -> None:
    """Raise ModelError if `name` could lead out of its folder on any system, or hides characters.

    That is: absolute, drive and UNC names, `..`, backslashes, control and direction characters.
    """
    escapes = name.startswith("/") or "\\" in name or ".." in name.split("/") or _DRIVE.match(name)
    if not name or escapes or not name.isprintable():
        raise ModelError(f"The repository lists a file with an unsafe name: {quoted(name)}.")


def is_portable(name: str) -> bool:
    """Whether `name` (which `refuse_escape` let pass) can be a file on every system, under this very name."""
    return all(
        part not in ("", ".")
        and part[-1] not in ". "
        and len(part.encode()) <= 255
        and not _UNPORTABLE.search(part)
        and not _DEVICE.fullmatch(part)
        for part in name.split("/")
    )


def no_clashes(listed: Iterable[str], wanted: Iterable[str]) -> None:
    """Raise ModelError if a `wanted` name differs from a `listed` one in case only: they may be one file."""
    by_case = {name.lower(): name for name in wanted}
    for name in listed:
        other = by_case.get(name.lower(), name)
        if other != name:
            raise ModelError(
                f"The repository lists {quoted(other)} and {quoted(name)}, which some systems take for one file."
            )


def size_text(count: int) -> str:
    """A number of bytes as people read it: "98 MB", "16.2 GB"."""
    if count < 1000:
        return f"{count} bytes"
    value, unit = count / 1000.0, "kB"
    for larger in ("MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000.0, larger
    tenths = value < (99.95 if unit in ("GB", "TB") else 9.95)
    return f"{value:.1f} {unit}" if tenths else f"{value:.0f} {unit}"


def size_of(path: Path) -> int:
    """Bytes of a file, a link followed; 0 for what is no file or has just gone."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def folder_bytes(folder: Path) -> int:
    """Bytes of the files under `folder`, links not followed: what its removal frees."""
    return sum(size_of(path) for path in folder.rglob("*") if not path.is_symlink())


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


def fresh_name() -> str:
    """A hidden name that no other file has."""
    return f".{os.urandom(16).hex()}"


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


def write_whole(target: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write a small file so that readers see the old content or the new one."""
    temporary = target.with_name(fresh_name())
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
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
