"""Tensors in safetensors files, read lazily: one file, or shards that an index names.

A file is 8 bytes of header length, a JSON header of {name: {dtype, shape, data_offsets}}, then the data.
Every size in a header is checked against the file before anything is read: the tensors must cover the
data exactly, without overlap, hole or rest. What the tensors mean is decided elsewhere.
Source: the format's description in the README of huggingface/safetensors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.weights.files import (
    FETCH_AGAIN,
    DataFile,
    parse_object,
    read_object,
    shown,
)
from llmrs_cli.errors import ModelError, quoted

MAX_HEADER = 16 << 20
MAX_TENSORS = 100_000
MAX_DIMENSIONS = 8
MAX_SHARDS = 1_000
NAMED = 10
"""How many names of a kind a message lists."""

DTYPES = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "F8_E4M3": "u1",
    "F8_E5M2": "u1",
    "F8_E8M0": "u1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "BF16": "<u2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
}
"""NumPy's name of each stored dtype; those it does not have are given as their bits."""

Tensors = dict[str, "StoredTensor"]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor that has been found sound by its header, not read yet."""

    name: str
    dtype: str
    """A key of DTYPES."""
    shape: tuple[int, ...]
    file: DataFile
    offset: int
    nbytes: int

    def read(self) -> NDArray[Any]:
        """Its values in memory of our own; bfloat16 as uint16 bit patterns."""
        return self.file.read(self.offset, self.nbytes).view(DTYPES[self.dtype]).reshape(self.shape)

    def rows(self, chosen: slice) -> NDArray[Any]:
        """The same of the rows first … last - 1 alone; nothing else is read."""
        width = self.nbytes // max(self.shape[0], 1)
        count = chosen.stop - chosen.start
        data = self.file.read(self.offset + chosen.start * width, count * width)
        return data.view(DTYPES[self.dtype]).reshape(count, *self.shape[1:])


def few(names: Iterable[str]) -> str:
    """The first names of a list, quoted, and how many there are if that is more."""
    found = list(names)
    text = ", ".join(quoted(name, 120) for name in found[:NAMED])
    return text if len(found) <= NAMED else f"{text}, … ({len(found)} in all)"


# -- one file -----------------------------------------------------------------------------------------


def read_file(path: Path) -> Tensors:
    """The tensors of one safetensors file by name; only the header is read."""
    file = DataFile.open(path)
    if (what := file.foreign()) is not None:
        raise ModelError(f"{shown(path)} is {what}, not a safetensors file.", hint=FETCH_AGAIN)
    start, header = _header(file)
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise ModelError(f"{shown(path)} names {len(header)} tensors; at most {MAX_TENSORS} are read.")
    tensors = [_tensor(file, start, name, entry) for name, entry in header.items()]
    _check_cover(file, start, tensors)
    return {tensor.name: tensor for tensor in tensors}


def read_metadata(path: Path) -> dict[str, str]:
    """What a safetensors file says of itself, in words; only texts count. Raises ModelError as `read_file`."""
    _, header = _header(DataFile.open(path))
    said = header.get("__metadata__")
    values = said if isinstance(said, dict) else {}
    return {key: value for key, value in values.items() if isinstance(value, str)}


def _header(file: DataFile) -> tuple[int, dict[str, object]]:
    """Where the data begins, and the parsed header."""
    where = shown(file.path)
    if file.size < 8:
        raise ModelError(f"{where} is no safetensors file: it has only {file.size} bytes.", hint=FETCH_AGAIN)
    length = int.from_bytes(file.read(0, 8).tobytes(), "little")
    if length > MAX_HEADER:
        raise ModelError(f"{where} is no safetensors file: its header would have {length} bytes.")
    if 8 + length > file.size:
        raise ModelError(
            f"{where} is truncated: its header ends at byte {8 + length}, the file at {file.size}.",
            hint=FETCH_AGAIN,
        )
    data = file.read(8, length).tobytes()
    if not data.startswith(b"{"):
        raise ModelError(f"{where} is no safetensors file: its header is no JSON object.", hint=FETCH_AGAIN)
    return 8 + length, parse_object(data, f"The header of {where}", unique=True)


def _tensor(file: DataFile, start: int, name: str, entry: object) -> StoredTensor:
    def refuse(problem: str) -> NoReturn:
        raise ModelError(f"Tensor {quoted(name, 120)} in {shown(file.path)} {problem}.", hint=FETCH_AGAIN)

    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        refuse("is not described by dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        refuse(f"has the unknown dtype {quoted(dtype)}")
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        refuse(f"has no valid shape: {quoted(shape)}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        refuse(f"has no valid data_offsets: {quoted(offsets)}")
    nbytes = math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
    if offsets[1] - offsets[0] != nbytes:
        refuse(
            f"has {offsets[1] - offsets[0]} bytes of data; {dtype} of shape {quoted(shape)} takes {nbytes}"
        )
    return StoredTensor(name, dtype, tuple(shape), file, start + offsets[0], nbytes)


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in value)


def _check_cover(file: DataFile, start: int, tensors: list[StoredTensor]) -> None:
    """Each tensor begins where the one before it ends, the last one ends with the file."""
    end = start
    for tensor in sorted(tensors, key=lambda t: (t.offset, t.nbytes)):
        if tensor.offset != end:
            what = "overlaps the one before it" if tensor.offset < end else "leaves a hole before it"
            raise ModelError(
                f"Tensor {quoted(tensor.name, 120)} in {shown(file.path)} {what}.", hint=FETCH_AGAIN
            )
        end += tensor.nbytes
    if end > file.size:
        raise ModelError(
            f"{shown(file.path)} is truncated: it has {file.size} bytes of {end}.", hint=FETCH_AGAIN
        )
    if end < file.size:
        raise ModelError(f"{shown(file.path)} has {file.size - end} bytes after its last tensor.")


# -- a folder -----------------------------------------------------------------------------------------

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}\.safetensors")


def read_folder(folder: Path) -> tuple[Tensors, list[str]]:
    """The tensors of a model folder by name, and notes for the user.

    `model.safetensors` goes before an index, as in transformers; a lone file may have any name.
    """
    single, index = folder / SINGLE, folder / INDEX
    if single.exists():
        notes = [f"{shown(index)} is not used: {SINGLE} stands beside it."] if index.exists() else []
        return read_file(single), notes
    if index.exists():
        return _read_shards(folder, index), []
    others = sorted(path for path in folder.glob("*.safetensors"))
    if len(others) == 1:
        return read_file(others[0]), []
    raise _no_weights(folder, others)


def _no_weights(folder: Path, others: list[Path]) -> ModelError:
    if others:
        return ModelError(f"{shown(folder)} has several safetensors files and no {INDEX}.", hint=FETCH_AGAIN)
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        return ModelError(
            f"{shown(folder)} holds its weights as pickles, which we never open.",
            hint="Look for a safetensors version of the model.",
        )
    return ModelError(f"{shown(folder)} has no {SINGLE}.", hint="The folder may be incomplete.")


def _read_shards(folder: Path, index: Path) -> Tensors:
    placed = _weight_map(index)
    shards = sorted(set(placed.values()))
    if missing := [name for name in shards if not (folder / name).exists()]:
        raise ModelError(f"{shown(index)} names files that are missing: {few(missing)}.", hint=FETCH_AGAIN)
    tensors: Tensors = {}
    for name in shards:
        found = read_file(folder / name)
        if twins := found.keys() & tensors.keys():
            raise ModelError(f"Tensors are in two shards of {shown(index)}: {few(sorted(twins))}.")
        tensors |= found
    _check_places(index, placed, tensors)
    return tensors


def _weight_map(index: Path) -> dict[str, str]:
    """Which file holds which tensor; every file name is a plain one beside the index."""
    placed = read_object(index, unique=True).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise ModelError(f"{shown(index)} has no weight_map.", hint=FETCH_AGAIN)
    for name in placed.values():
        if not isinstance(name, str) or not _SHARD.fullmatch(name):
            raise ModelError(f"{shown(index)} names {quoted(name)}, which is no safetensors file beside it.")
    if len(set(placed.values())) > MAX_SHARDS:
        raise ModelError(f"{shown(index)} names more than {MAX_SHARDS} files.")
    return placed


def _check_places(index: Path, placed: Mapping[str, str], tensors: Tensors) -> None:
    lost = [n for n, file in placed.items() if n not in tensors or tensors[n].file.path.name != file]
    if lost:
        raise ModelError(f"Tensors are not where {shown(index)} says: {few(lost)}.", hint=FETCH_AGAIN)
