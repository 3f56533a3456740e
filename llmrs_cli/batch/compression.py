"""gzip and zstd, in and out: inputs are known by their first bytes, outputs by their names.

zstd is in Python's library from 3.14 on; before, it needs the package backports.zstd, which has the same
interface and is asked for only when such a file is met.
"""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Protocol, cast

from llmrs_cli.errors import LlmrsError, ModelError, UsageError

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
SUFFIXES = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}


def plain_name(path: Path) -> Path:
    """`path` without the ending that says how it is compressed."""
    return path.with_suffix("") if path.suffix.lower() in SUFFIXES else path


def decompressed(stream: io.BufferedReader) -> BinaryIO:
    """`stream` as it was before it was compressed, if it was. Reading raises ModelError if it is damaged."""
    start = stream.peek(len(ZSTD))
    if start.startswith(GZIP):
        return _reader(gzip.GzipFile(fileobj=stream), "gzip")
    if start.startswith(ZSTD):
        return _reader(_zstd().ZstdFile(stream), "zstd")
    return stream


def _reader(file: Any, kind: str) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(_Checked(file, kind), 1 << 16))


class _Checked(io.RawIOBase):
    """A decompressing stream whose errors are ours."""

    def __init__(self, file: Any, kind: str) -> None:
        self._file, self._kind = file, kind

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = (
                self._file.read1(len(buffer))
                if hasattr(self._file, "read1")
                else self._file.read(len(buffer))
            )
        except (EOFError, OSError, zlib.error) as error:
            raise self._damaged(error) from error
        except Exception as error:
            if type(error).__name__ != "ZstdError":
                raise
            raise self._damaged(error) from error
        buffer[: len(data)] = data
        return len(data)

    def _damaged(self, error: Exception) -> LlmrsError:
        what = "is cut off" if isinstance(error, EOFError) else "is damaged"
        return ModelError(f"The input's {self._kind} stream {what}.", hint="Make the file again.")


class Compressor(Protocol):
    """A stream being compressed."""

    def compress(self, data: bytes) -> bytes:
        """What is ready after `data`."""

    def flush(self) -> bytes:
        """What lets a reader see everything so far."""

    def end(self) -> bytes:
        """The rest."""


def compressor_for(path: Path) -> Compressor | None:
    """How a file of this name is compressed; None: not at all. UsageError if zstd is not here."""
    kind = SUFFIXES.get(path.suffix.lower())
    if kind is None:
        return None
    return _Gzip() if kind == "gzip" else _Zstd()


class _Gzip:
    def __init__(self) -> None:
        self._stream = zlib.compressobj(6, zlib.DEFLATED, zlib.MAX_WBITS | 16)

    def compress(self, data: bytes) -> bytes:
        return self._stream.compress(data)

    def flush(self) -> bytes:
        return self._stream.flush(zlib.Z_SYNC_FLUSH)

    def end(self) -> bytes:
        return self._stream.flush(zlib.Z_FINISH)


class _Zstd:
    def __init__(self) -> None:
        self._stream = _zstd().ZstdCompressor()

    def compress(self, data: bytes) -> bytes:
        return bytes(self._stream.compress(data))

    def flush(self) -> bytes:
        return bytes(self._stream.flush(self._stream.FLUSH_BLOCK))

    def end(self) -> bytes:
        return bytes(self._stream.flush(self._stream.FLUSH_FRAME))


def _zstd() -> ModuleType:
    try:
        from backports import zstd
    except ImportError:
        raise UsageError(
            "zstd needs a package that is not here.", hint="pip install backports.zstd, or use gzip."
        ) from None
    return zstd
