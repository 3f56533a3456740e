"""A safetensors file written tensor by tensor, in any order, with nothing held in memory.

Sizes are known first, so the header is written first and every tensor has its place. Tensors lie in the
order of falling alignment, then of their names, as the format's own library puts them.
Source: the format's description in the README of huggingface/safetensors.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.weights.store import DTYPES

_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor to be written."""

    dtype: str
    """As in the file: "F16", "I32" …"""
    shape: tuple[int, ...]

    @property
    def kind(self) -> np.dtype[Any]:
        return np.dtype(DTYPES[self.dtype])

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.kind.itemsize


class TensorFile:
    """A new file for `entries`; `close` it when every tensor is written."""

    def __init__(self, path: Path, entries: Mapping[str, Entry], metadata: Mapping[str, str]) -> None:
        self._entries = entries
        self._offsets: dict[str, int] = {}
        self._left = {name: entry.nbytes for name, entry in entries.items()}
        header = self._place(metadata)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._pwrite(memoryview(header), 0)

    def _place(self, metadata: Mapping[str, str]) -> bytes:
        """Give every tensor its offset; the header."""
        at = 0
        described: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
        for name in sorted(self._entries, key=lambda n: (-self._entries[n].kind.itemsize, n)):
            entry = self._entries[name]
            self._offsets[name] = at
            at += entry.nbytes
            offsets = [self._offsets[name], at]
            described[name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": offsets}
        text = json.dumps(described, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        self._start = 8 + len(text)
        return len(text).to_bytes(8, "little") + text

    def write(self, name: str, values: NDArray[Any], row: int = 0) -> None:
        """Write a tensor, or some of its rows from `row` on; each row once."""
        entry = self._entries[name]
        assert values.dtype == entry.kind and values.shape[1:] == entry.shape[1:], name
        data = values.tobytes()
        self._left[name] -= len(data)
        assert self._left[name] >= 0, name
        width = entry.nbytes // max(entry.shape[0], 1)
        self._pwrite(memoryview(data), self._start + self._offsets[name] + row * width)

    def _pwrite(self, data: memoryview, offset: int) -> None:
        while data:
            done = os.pwrite(self._descriptor, data, offset)
            data, offset = data[done:], offset + done

    def close(self) -> None:
        """End the file; every tensor has been written."""
        self._release()
        unwritten = [name for name, left in self._left.items() if left]
        assert not unwritten, unwritten

    def _release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._release()
