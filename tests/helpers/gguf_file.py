"""GGUF files byte by byte, right ones and wrong ones; no code is shared with the reader."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 4, 5, 6, 7, 8, 9, 10
_SHAPES = {UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<?", UINT64: "<Q"}


def text(value: str | bytes) -> bytes:
    """A string with its length."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(kind: int, content: Any) -> bytes:
    """A metadata value without its key."""
    return struct.pack("<I", kind) + (
        text(content) if kind == STRING else struct.pack(_SHAPES[kind], content)
    )


def array(kind: int, items: Sequence[Any]) -> bytes:
    """An array of values of one kind."""
    body = [text(item) if kind == STRING else struct.pack(_SHAPES[kind], item) for item in items]
    return struct.pack("<IIQ", ARRAY, kind, len(items)) + b"".join(body)


def plain(content: Any) -> bytes:
    """A value of the kind that writers choose for a Python value."""
    if isinstance(content, bool):
        return value(BOOL, content)
    if isinstance(content, int):
        return value(UINT32, content)
    if isinstance(content, float):
        return value(FLOAT32, content)
    if isinstance(content, str):
        return value(STRING, content)
    kind = STRING if isinstance(content[0], str) else FLOAT32 if isinstance(content[0], float) else INT32
    return array(kind, content)


@dataclass(frozen=True)
class Tensor:
    """Sizes are innermost first, as in the file."""

    name: str
    sizes: Sequence[int]
    kind: int
    data: bytes
    offset: int | None = None
    """None: where it belongs."""


@dataclass(frozen=True)
class GgufFile:
    """What to write; every default is right, every field may be made wrong."""

    metadata: Sequence[tuple[str | bytes, bytes]] = ()
    """Key and encoded value."""
    tensors: Sequence[Tensor] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    key_count: int | None = None
    alignment: int = 32
    tail: bytes = b""

    def build(self) -> bytes:
        counts = (
            len(self.tensors) if self.tensor_count is None else self.tensor_count,
            len(self.metadata) if self.key_count is None else self.key_count,
        )
        front = self.magic + struct.pack("<IQQ", self.version, *counts)
        front += b"".join(text(key) + encoded for key, encoded in self.metadata)
        data = b""
        for tensor in self.tensors:
            data += bytes(-len(data) % self.alignment)
            at = len(data) if tensor.offset is None else tensor.offset
            front += text(tensor.name) + struct.pack("<I", len(tensor.sizes))
            front += struct.pack(f"<{len(tensor.sizes)}Q", *tensor.sizes) + struct.pack(
                "<IQ", tensor.kind, at
            )
            data += tensor.data
        return front + bytes(-len(front) % self.alignment) + data + self.tail
