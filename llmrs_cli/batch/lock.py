"""One run per output: a lock that dies with its process, in a file beside the output that names it."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from llmrs_cli.errors import UsageError, quoted

_UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS})
"""File systems without locks: two runs at once are then the user's affair."""


class OutputLock:
    """Held from construction to `close`."""

    def __init__(self, output: Path) -> None:
        """Take the lock of `output`. UsageError naming the process that has it."""
        self._path = output.with_name(output.name + ".lock")
        while True:
            self._file = _open(self._path)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise self._taken(output) from None
            if self._is_current():
                break
            os.close(self._file)  # its last owner removed it in between
        os.ftruncate(self._file, 0)
        os.write(self._file, f"{os.getpid()}\n".encode())

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), self._path.stat())
        except FileNotFoundError:
            return False

    def _taken(self, output: Path) -> UsageError:
        owner = os.pread(self._file, 20, 0).decode("ascii", "replace").strip()
        os.close(self._file)
        who = f"process {owner}" if owner.isdigit() else "another process"
        return UsageError(
            f"{quoted(str(output))} is being written by {who}.", hint="Wait for it, or name another output."
        )

    def close(self) -> None:
        """Let others have it."""
        self._path.unlink(missing_ok=True)
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise UsageError(f"Cannot write {quoted(str(path))}: {error.strerror}.") from error
