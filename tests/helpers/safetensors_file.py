"""safetensors files byte by byte, right ones and wrong ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


def entry(dtype: str, shape: Any, begin: Any, end: Any) -> Entry:
    """One tensor as a header describes it."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def raw_file(path: Path, header: bytes, data: bytes = b"", *, length: int | None = None) -> Path:
    """Write a file with this header; `length` is what its first 8 bytes claim."""
    claimed = len(header) if length is None else length
    path.write_bytes(claimed.to_bytes(8, "little") + header + data)
    return path


def file_of(path: Path, entries: dict[str, Entry], data: bytes, *, pad: int = 0) -> Path:
    """Write a file with these entries; `pad` blanks follow the header."""
    return raw_file(path, json.dumps(entries).encode() + b" " * pad, data)
