"""A folder that appears whole or not at all, whatever happens to the process or the disk meanwhile.

It is written beside its place under a name of its own, synced, and renamed. A lock beside it lets one process
write at a time; what a killed one left behind is removed by the next. Nothing here knows what is written.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from llmrs_cli.engine.weights.files import reason, shown
from llmrs_cli.errors import LlmrsError

_PART = ".part-"


@contextmanager
def lock_folder(target: Path, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the right to write `target`; waits for a process that has it, after calling `on_wait`.

    The lock dies with its process. Where the file system has none, two writers do double work, and one of
    them finds the place taken.
    """
    path = target.parent / f".{target.name}.lock"
    file = _take(path, on_wait)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(file)


def _take(path: Path, on_wait: Callable[[], None] | None) -> int:
    """A descriptor of the lock file, locked; it is the file that others will find."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(file, on_wait)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), path.stat()):
                    return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # its last owner removed it in between


def _lock(file: int, on_wait: Callable[[], None] | None) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if on_wait is not None:
            on_wait()
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:  # no locks on this file system
        pass


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `target` when the block ends well and is removed when it does not.

    Call it under `lock_folder`. Raises LlmrsError if `target` cannot take its name, OSError as the block does.
    """
    for left in target.parent.glob(f".{target.name}{_PART}*"):
        shutil.rmtree(left, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}{_PART}", dir=target.parent))
    try:
        yield part
        part.chmod(0o777 & ~_umask())
        _sync_tree(part)
        try:
            os.rename(part, target)  # noqa: PTH104  # unlike Path.rename it is said to take an empty folder's place
        except OSError as error:
            raise LlmrsError(f"{shown(target)} cannot be put in place: {reason(error)}.") from error
        with suppress(OSError):  # it has its name; whether that outlives a power cut is up to the disk
            _sync(target.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync_tree(folder: Path) -> None:
    """Wait until all of `folder` is on the disk."""
    for path in sorted(folder.rglob("*")):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
