"""Writing that survives a kill at any moment: whole writes, syncs, and files that are replaced at once.

Nothing here knows what is written. Every call of the system that can fail half-way goes through this module.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

TEMPORARY = ".new"
"""Ending of a file that is being written and will take another's place."""


def write_all(file: int, data: bytes) -> None:
    """Write to a descriptor, in one call if the system takes it all; OSError if the disk is full."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def sync(file: int) -> None:
    """Wait until what was written is on the disk."""
    os.fsync(file)


def replace(source: Path, target: Path) -> None:
    """Put the finished `source`, already synced, in the place of `target`."""
    os.replace(source, target)  # noqa: PTH105  # beside its fellows
    sync_folder(target.parent)


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108  # beside its fellows
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until names in `folder` are on the disk; some file systems cannot, and need not."""
    file = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(PermissionError):
            os.fsync(file)
    finally:
        os.close(file)


def write_file(path: Path, data: bytes) -> None:
    """Make `path` hold `data`: readers see the old file or the whole new one."""
    new = path.with_name(path.name + TEMPORARY)
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        write_all(file, data)
        os.fsync(file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)
    replace(new, path)
