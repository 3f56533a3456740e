"""Weights of a converted checkpoint: each as the tensors it is stored in, and back.

    kind       pieces
    dense      ""                                          as it was
    tiles      "tiles"                                     the kernels' order (`kernels.marlin_layout`)
    packed4    "codes", "scales", "zeros" or "offsets"     what tiles cannot hold, in its canonical form
    packed8    "codes", "scales"

and "inputs" too where columns were sorted. A piece is checked against its digest when it is read,
unless its file is still the one that was proved when it was written.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.weights.checksum import digest
from llmrs_cli.engine.weights.files import Stamp, read_small, shown
from llmrs_cli.engine.weights.manifest import CONVERT_AGAIN, MANIFEST, Manifest, StoredWeight
from llmrs_cli.engine.weights.packed import (
    Dense,
    Packed4,
    Packed8,
    Permuted4,
    Stored,
    Tiles4,
    Weight,
    canonical,
)
from llmrs_cli.engine.weights.parameters import Parameter
from llmrs_cli.engine.weights.store import StoredTensor, Tensors, read_file
from llmrs_cli.errors import ModelError, quoted
from llmrs_cli.kernels.marlin_layout import Layout, pack, tile_group

Array = NDArray[Any]
Pieces = dict[str, Array]
DTYPES = {"f": "F32", "e": "F16", "H": "BF16", "B": "U8", "b": "I8", "i": "I32"}
"""Stored dtype by NumPy's letter; uint16 holds bfloat16 bits."""
_FLOATS, _SCALES = ("F32", "F16", "BF16"), ("F32", "F16")
_FILE = re.compile(r"[a-z0-9-]+\.safetensors")


def tensor_name(weight: str, piece: str) -> str:
    """Under which a piece lies in its file."""
    return f"{weight}.{piece}" if piece else weight


# -- a weight ↔ its pieces ------------------------------------------------------------------------------


def to_pieces(weight: Weight) -> tuple[str, int, Pieces]:
    """Kind, group size and pieces of a weight."""
    if isinstance(weight, Dense):
        return "dense", 0, {"": weight.data}
    if isinstance(weight, Packed8):
        return "packed8", weight.group, {"codes": weight.codes, "scales": weight.scales}
    if isinstance(weight, Permuted4):
        kind, group, pieces = to_pieces(weight.weight)
        return kind, group, pieces | {"inputs": weight.inputs}
    if _fits_tiles(weight):
        assert weight.zeros is not None
        tiles = pack(weight.codes, weight.scales, weight.zeros, weight.group, weight.columns)  # type: ignore[arg-type]
        return "tiles", weight.group, {"tiles": tiles}
    second = {"zeros": weight.zeros} if weight.zeros is not None else {"offsets": weight.offsets}
    return "packed4", weight.group, {"codes": weight.codes, "scales": weight.scales, **second}  # type: ignore[dict-item]


def _fits_tiles(weight: Packed4) -> bool:
    """Tiles hold float16 scales and whole zeros, of groups that fall on their own."""
    plain = weight.zeros is not None and weight.scales.dtype == np.float16
    return plain and tile_group(weight.group, weight.columns) is not None


def from_pieces(stored: StoredWeight, pieces: Mapping[str, Array]) -> Stored:
    """Inverse of `to_pieces`, but that tiles stay such where columns are in order."""
    if stored.kind == "dense":
        return Dense(pieces[""])
    rows, columns = stored.shape
    if stored.kind == "packed8":
        return Packed8(pieces["codes"], pieces["scales"], stored.group)
    if stored.kind == "tiles":
        tiles = Tiles4(pieces["tiles"], stored.group, (rows, columns))
        if "inputs" not in pieces:
            return tiles
        weight = tiles.canonical()
    else:
        second = pieces.get("zeros"), pieces.get("offsets")
        weight = Packed4(pieces["codes"], pieces["scales"], *second, stored.group, columns)
    return Permuted4(weight, pieces["inputs"]) if "inputs" in pieces else weight


# -- a folder → parameters ------------------------------------------------------------------------------


def converted_parameters(folder: Path, manifest: Manifest, *, anew: bool = False) -> dict[str, Parameter]:
    """Every weight of a converted checkpoint; only headers and small files are read.

    `anew`: weights will be checked again whatever their files look like. Raises ModelError naming the file or the weight that is not as the manifest says.
    """
    for name, expected in manifest.files.items():
        if hashlib.sha256(read_small(folder / name)).hexdigest() != expected:
            raise ModelError(f"{shown(folder / name)} is not what was written.", hint=CONVERT_AGAIN)
    return stored_parameters(folder, manifest.weights, {} if anew else manifest.stamps)


def stored_parameters(
    folder: Path, weights: Mapping[str, StoredWeight], proved: Mapping[str, Stamp]
) -> dict[str, Parameter]:
    """The weights that lie in files of `folder`, read on demand; those of `proved` files without a check.

    Raises ModelError as `converted_parameters`.
    """
    tensors: Tensors = {}
    for file in sorted({piece.file for weight in weights.values() for piece in weight.pieces.values()}):
        if not _FILE.fullmatch(file):
            raise ModelError(f"{shown(folder / MANIFEST)} names {quoted(file)}, which is no file of ours.")
        tensors |= read_file(folder / file)
    return {name: _parameter(name, weight, tensors, proved) for name, weight in weights.items()}


def _parameter(name: str, stored: StoredWeight, tensors: Tensors, proved: Mapping[str, Stamp]) -> Parameter:
    pieces = {piece: tensors.get(tensor_name(name, piece)) for piece in stored.pieces}
    found = {piece: tensor for piece, tensor in pieces.items() if tensor is not None}
    if len(found) < len(pieces) or not _is_as_said(stored, found):
        raise ModelError(f"{quoted(name, 120)} is not stored as its manifest says.", hint=CONVERT_AGAIN)
    nbytes = sum(tensor.nbytes for tensor in found.values())
    form = stored.form + (", in tiles" if stored.kind == "tiles" else "")
    names = tuple(tensor.name for tensor in found.values())
    read = partial(_read, name, stored, found, proved)
    return Parameter(stored.shape, form, nbytes, names, lambda: canonical(read()), read)


KINDS = {
    "dense": ({""},),
    "tiles": ({"tiles"},),
    "packed4": ({"codes", "scales", "zeros"}, {"codes", "scales", "offsets"}),
    "packed8": ({"codes", "scales"},),
}
"""What a weight of each kind is made of, inputs apart."""


def _is_as_said(stored: StoredWeight, tensors: Mapping[str, StoredTensor]) -> bool:
    """Whether the pieces are those of the kind, each of a dtype and shape that fits."""
    if tensors.keys() - {"inputs"} not in KINDS.get(stored.kind, ()):
        return False
    if stored.kind == "dense":
        return tensors[""].dtype in _FLOATS and tensors[""].shape == stored.shape
    if len(stored.shape) != 2 or stored.group < 1 or min(stored.shape) < 1:
        return False
    wanted = _packed_shapes(stored)
    return all(tensor.dtype in wanted[p][0] and tensor.shape == wanted[p][1] for p, tensor in tensors.items())


def _packed_shapes(stored: StoredWeight) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
    """Dtypes and shape of every piece that a packed weight may have."""
    n, k = stored.shape
    by_group = n, -(-k // stored.group)
    own = tile_group(stored.group, k)
    tiles = None if own is None else Layout(n, k, own)
    return {
        "tiles": (("U8",), (tiles.unit_rows, tiles.unit_columns, tiles.unit_bytes) if tiles else ()),
        "codes": (("I8",), (n, k)) if stored.kind == "packed8" else (("U8",), (n, -(-k // 2))),
        "scales": (_SCALES, by_group),
        "zeros": (("U8",), by_group),
        "offsets": (_SCALES, by_group),
        "inputs": (("I32",), (k,)),
    }


def _read(
    name: str, stored: StoredWeight, tensors: Mapping[str, StoredTensor], proved: Mapping[str, Stamp]
) -> Stored:
    pieces: Pieces = {}
    for piece, tensor in tensors.items():
        pieces[piece] = tensor.read()
        known = tensor.file.stamp == proved.get(tensor.file.path.name)
        if not known and digest(pieces[piece]) != stored.pieces[piece].digest:
            raise ModelError(
                f"{quoted(name, 120)} in {shown(tensor.file.path)} is not what was written.",
                hint=CONVERT_AGAIN,
            )
    inputs = pieces.get("inputs")
    if inputs is not None and not np.array_equal(np.sort(inputs), np.arange(stored.shape[1])):
        raise ModelError(f"The order of the inputs of {quoted(name, 120)} is none.", hint=CONVERT_AGAIN)
    return from_pieces(stored, pieces)
