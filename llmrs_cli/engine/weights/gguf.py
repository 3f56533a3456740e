"""GGUF files, versions 2 and 3: metadata and tensor headers, every size checked before it is used.

A file is magic, version, counts, then metadata (key, type, value), then tensor headers (name, sizes,
type, offset), then the data, aligned. What a block format means is `gguf_types`, what the metadata mean
is `gguf_config` and `gguf_tokenizer`. Arrays are decoded in bulk. Nothing is read past MAX_METADATA.
Source: docs/gguf.md of ggml-org/ggml.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.weights.files import FETCH_AGAIN, Bytes, DataFile, shown
from llmrs_cli.engine.weights.gguf_types import FORMATS, Format
from llmrs_cli.errors import ModelError, quoted

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_METADATA = 64 << 20
"""Bytes of everything before the data; the largest vocabularies take about 12 MB."""
MAX_KEYS = 1 << 16
MAX_TENSORS = 100_000
MAX_KEY, MAX_NAME = 1 << 12, 256
"""Bytes of a metadata key and of a tensor's name."""
MAX_STRING = 16 << 20
MAX_ITEMS = 2 << 20
"""Values in one array: each costs up to 60 bytes of memory however small it is in the file."""
MAX_ALIGNMENT = 1 << 16
_FETCH = 1 << 20

Value = int | float | bool | str | list[Any]
"""An array is a list of strings or of numbers."""

_NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
"""NumPy's name of each numeric value type."""
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor that has been found sound by its header, not read yet."""

    name: str
    format: Format
    shape: tuple[int, ...]
    """Outermost first, as in NumPy; rows are contiguous."""
    file: DataFile
    offset: int
    nbytes: int

    def read(self) -> Bytes:
        """Its bytes, (rows, bytes of a row)."""
        rows = math.prod(self.shape[:-1])
        return self.file.read(self.offset, self.nbytes).reshape(rows, -1)

    def rows(self, chosen: slice) -> Bytes:
        """The same of the rows first … last - 1 of a matrix; nothing else is read."""
        width = self.nbytes // self.shape[0]
        count = chosen.stop - chosen.start
        return self.file.read(self.offset + chosen.start * width, count * width).reshape(count, -1)


@dataclass(frozen=True, slots=True)
class Gguf:
    """The headers of one file."""

    file: DataFile
    metadata: dict[str, Value]
    tensors: dict[str, GgufTensor]


def read_gguf(path: Path) -> Gguf:
    """Read the headers of a GGUF file. Raises ModelError naming the field that is wrong."""
    file = DataFile.open(path)
    cursor = _Cursor(file)
    tensor_count, key_count = _read_start(cursor)
    metadata: dict[str, Value] = {}
    for _ in range(key_count):
        key = cursor.string(MAX_KEY, "a metadata key")
        if key in metadata:
            cursor.refuse(f"has two metadata keys {quoted(key)}")
        metadata[key] = _value(cursor, key)
    if _is_split(metadata):
        raise ModelError(
            f"{shown(path)} is one part of a split model.",
            hint="Join its parts with llama-gguf-split --merge.",
        )
    headers = [_tensor_header(cursor) for _ in range(tensor_count)]
    return Gguf(file, metadata, _place(cursor, headers, _alignment(cursor, metadata)))


def _read_start(cursor: _Cursor) -> tuple[int, int]:
    """Check magic and version; the numbers of tensors and of metadata keys."""
    start = cursor.take(min(len(MAGIC), cursor.file.size))
    if start != MAGIC:
        what = cursor.file.foreign() or "something else"
        raise ModelError(f"{shown(cursor.file.path)} is {what}, not a GGUF file.", hint=FETCH_AGAIN)
    version = int(cursor.number("<u4"))
    if version not in VERSIONS:
        big = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        cursor.refuse("is big-endian" if big else f"has version {version}; we read 2 and 3")
    tensor_count, key_count = int(cursor.number("<u8")), int(cursor.number("<u8"))
    if tensor_count > MAX_TENSORS:
        cursor.refuse(f"would have {tensor_count} tensors; at most {MAX_TENSORS} are read")
    if key_count > MAX_KEYS:
        cursor.refuse(f"would have {key_count} metadata keys; at most {MAX_KEYS} are read")
    return tensor_count, key_count


def _value(cursor: _Cursor, key: str) -> Value:
    where = f"metadata key {quoted(key)}"
    kind = int(cursor.number("<u4"))
    if kind == _STRING:
        return cursor.string(MAX_STRING, where)
    if kind == _ARRAY:
        return _array(cursor, where)
    if kind not in _NUMBERS:
        cursor.refuse(f"has the unknown value type {kind} at {where}")
    value: Value = cursor.numbers(_NUMBERS[kind], 1, where)[0].item()
    return value


def _array(cursor: _Cursor, where: str) -> list[Any]:
    kind, count = int(cursor.number("<u4")), int(cursor.number("<u8"))
    if kind not in _NUMBERS and kind != _STRING:
        what = "an array of arrays" if kind == _ARRAY else f"an array of the unknown value type {kind}"
        cursor.refuse(f"has {what} at {where}")
    if count > MAX_ITEMS:
        cursor.refuse(f"has {count} values at {where}; at most {MAX_ITEMS} are read")
    if kind == _STRING:
        return cursor.strings(count, where)
    found: list[Any] = cursor.numbers(_NUMBERS[kind], count, where).tolist()
    return found


def _is_split(metadata: dict[str, Value]) -> bool:
    count = metadata.get("split.count", 1)
    return isinstance(count, int) and count > 1


def _alignment(cursor: _Cursor, metadata: dict[str, Value]) -> int:
    value = metadata.get("general.alignment", 32)
    if not isinstance(value, int) or not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
        cursor.refuse(f"has general.alignment {quoted(value)}; a power of two from 8 on would do")
    return value


# -- tensors ------------------------------------------------------------------------------------------

_Header = tuple[str, Format, tuple[int, ...], int]
"""Name, format, shape, offset into the data."""


def _tensor_header(cursor: _Cursor) -> _Header:
    name = cursor.string(MAX_NAME, "a tensor's name")
    dimensions = int(cursor.number("<u4"))
    if not 1 <= dimensions <= 4:
        cursor.refuse(f"has tensor {quoted(name)} of {dimensions} dimensions; 1 to 4 would do")
    sizes = [int(n) for n in cursor.numbers("<u8", dimensions, f"tensor {quoted(name)}")]
    if 0 in sizes or math.prod(sizes) >= 1 << 63:
        cursor.refuse(f"has tensor {quoted(name)} of impossible shape {quoted(sizes)}")
    kind, offset = int(cursor.number("<u4")), int(cursor.number("<u8"))
    if kind not in FORMATS:
        known = ", ".join(known.name for known in FORMATS.values())
        cursor.refuse(f"has tensor {quoted(name)} of type {kind}, which we do not read; we read {known}")
    if sizes[0] % FORMATS[kind].block:
        cursor.refuse(
            f"has tensor {quoted(name)} with rows of {sizes[0]}, no multiple of {FORMATS[kind].block}"
        )
    return name, FORMATS[kind], tuple(reversed(sizes)), offset


def _place(cursor: _Cursor, headers: list[_Header], alignment: int) -> dict[str, GgufTensor]:
    """Check that the tensors follow each other, each aligned, and fill the file to its end."""

    def aligned(position: int) -> int:
        return -(-position // alignment) * alignment

    start = end = aligned(cursor.position)
    tensors: dict[str, GgufTensor] = {}
    for name, form, shape, offset in sorted(headers, key=lambda header: header[3]):
        nbytes = math.prod(shape) // form.block * form.nbytes
        if name in tensors:
            cursor.refuse(f"has two tensors {quoted(name)}")
        if start + offset != aligned(end):
            cursor.refuse(f"has tensor {quoted(name)} at offset {offset}, not at {aligned(end) - start}")
        end = start + offset + nbytes
        tensors[name] = GgufTensor(name, form, shape, cursor.file, start + offset, nbytes)
    if end > cursor.file.size and headers:
        cursor.refuse(f"is truncated: it has {cursor.file.size} bytes of {end}")
    if cursor.file.size > aligned(end):
        cursor.refuse(f"has {cursor.file.size - end} bytes after its last tensor")
    return tensors


# -- reading ------------------------------------------------------------------------------------------


class _Cursor:
    """A position in the front part of a file, which is fetched as far as it is needed."""

    def __init__(self, file: DataFile) -> None:
        self.file = file
        self.position = 0
        self._data = b""

    def refuse(self, problem: str) -> NoReturn:
        raise ModelError(f"{shown(self.file.path)} {problem}.", hint=FETCH_AGAIN)

    def take(self, count: int, what: str = "its header") -> bytes:
        """The next `count` bytes."""
        self._fetch(count, what)
        found = self._data[self.position : self.position + count]
        self.position += count
        return found

    def number(self, dtype: str) -> Any:
        return self.numbers(dtype, 1, "its header")[0]

    def numbers(self, dtype: str, count: int, what: str) -> NDArray[Any]:
        """The next `count` numbers, in memory of their own."""
        found = np.frombuffer(self.take(count * np.dtype(dtype).itemsize, what), np.uint8)
        if dtype == "?" and (found > 1).any():
            self.refuse(f"has a truth value that is neither 0 nor 1 at {what}")
        return found.view(dtype)

    def string(self, limit: int, what: str) -> str:
        """The next string, of at most `limit` bytes."""
        length = int.from_bytes(self.take(8, what), "little")
        if length > limit:
            self.refuse(f"has a string of {length} bytes at {what}; at most {limit} are read")
        return self._decoded(self.take(length, what), what)

    def strings(self, count: int, what: str) -> list[str]:
        """The next `count` strings: the loop that opening a file spends its time in."""
        self._fetch(8 * count, what)
        data, position = self._data, self.position
        unpack = struct.Struct("<Q").unpack_from
        found = []
        for _ in range(count):
            if position + 8 > len(data):
                data, position = self._resume(position, 8, what)
            length = unpack(data, position)[0]
            position += 8
            if position + length > len(data):
                data, position = self._resume(position, length, what)
            found.append(data[position : position + length])
            position += length
        self.position = position
        return [self._decoded(text, what) for text in found]

    def _resume(self, position: int, count: int, what: str) -> tuple[bytes, int]:
        self.position = position
        self._fetch(count, what)
        return self._data, position

    def _decoded(self, text: bytes, what: str) -> str:
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError:
            self.refuse(f"has text that is not UTF-8 at {what}")

    def _fetch(self, count: int, what: str) -> None:
        """Have `count` bytes at hand from the position on."""
        end = self.position + count
        if end <= len(self._data):
            return
        if end > self.file.size:
            self.refuse(f"is truncated: it ends within {what}")
        if end > MAX_METADATA:
            self.refuse(f"has more than {MAX_METADATA} bytes of metadata, at {what}")
        wanted = min(max(end, 2 * len(self._data), _FETCH), self.file.size, MAX_METADATA)
        self._data += self.file.read(len(self._data), wanted - len(self._data)).tobytes()
