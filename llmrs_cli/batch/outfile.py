"""An output file that can be made again from its lines: plain, or compressed as its name says.

A plain file is compared with the lines that it should hold and continued; a compressed one is written anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from llmrs_cli.batch import durable
from llmrs_cli.batch.compression import Compressor, compressor_for
from llmrs_cli.errors import UsageError, quoted

CHUNK = 1 << 20


class OutFile(Protocol):
    """Lines into a file."""

    def restore(self, lines: Iterable[bytes]) -> None:
        """Make the file hold exactly `lines`, each with its end, and stand behind them."""

    def write(self, line: bytes) -> None:
        """Add one; OSError if the disk is full."""

    def sync(self) -> None:
        """Let readers see what was written, as far as the format allows."""

    def close(self) -> None:
        """End the file; what it holds then is whole and on the disk."""


def open_outfile(path: Path, *, trusted: bool = False) -> OutFile:
    """The file at `path`, made if need be; see `restore`. `trusted`: see `PlainFile`."""
    compressor = compressor_for(path)
    return PlainFile(path, trusted=trusted) if compressor is None else PackedFile(path, compressor)


class PlainFile:
    """Each line is complete and visible to readers before the next begins."""

    def __init__(self, path: Path, *, trusted: bool) -> None:
        """`trusted`: other content than the lines to restore is known to be ours, and may be replaced."""
        self._path, self._trusted = path, trusted
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def restore(self, lines: Iterable[bytes]) -> None:
        same, end = True, 0
        with open(self._file, "rb", closefd=False) as reader:
            for line in lines:
                if same:
                    found = reader.read(len(line))
                    same = found == line
                    if not same:
                        self._cut(end, is_ours=self._trusted or line.startswith(found))
                if not same:
                    durable.write_all(self._file, line)
                end += len(line)
        if same:
            nothing_foreign = end > 0 or os.fstat(self._file).st_size == 0
            self._cut(end, is_ours=self._trusted or nothing_foreign)

    def _cut(self, end: int, *, is_ours: bool) -> None:
        if not is_ours:
            raise UsageError(
                f"{quoted(str(self._path))} holds other lines than its journal.",
                hint="--force writes it anew from the journal, --overwrite starts over.",
            )
        os.ftruncate(self._file, end)
        os.lseek(self._file, end, os.SEEK_SET)

    def write(self, line: bytes) -> None:
        durable.write_all(self._file, line)

    def sync(self) -> None:
        pass  # each line is there already, and the journal is what counts

    def close(self) -> None:
        try:
            durable.sync(self._file)
        finally:
            os.close(self._file)


class PackedFile:
    """A compressed stream; readers see what was written before the latest `sync`."""

    def __init__(self, path: Path, compressor: Compressor) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._compressor = compressor

    def restore(self, lines: Iterable[bytes]) -> None:
        os.ftruncate(self._file, 0)
        for line in lines:
            self.write(line)

    def write(self, line: bytes) -> None:
        durable.write_all(self._file, self._compressor.compress(line))

    def sync(self) -> None:
        durable.write_all(self._file, self._compressor.flush())

    def close(self) -> None:
        try:
            durable.write_all(self._file, self._compressor.end())
            durable.sync(self._file)
        finally:
            os.close(self._file)
