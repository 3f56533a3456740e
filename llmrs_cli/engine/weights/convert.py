"""A checkpoint into a converted one: 4-bit layers in the kernels' order, one layer at a time, verified as it is written.

The result is keyed: its manifest names the identity of the source and the version of the order.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from llmrs_cli.engine.weights.checkpoint import Checkpoint, open_checkpoint
from llmrs_cli.engine.weights.checksum import digest
from llmrs_cli.engine.weights.companions import CONFIG, copy_companions, plain_config, write_json
from llmrs_cli.engine.weights.files import DataFile, shown
from llmrs_cli.engine.weights.load import check_parameters
from llmrs_cli.engine.weights.manifest import (
    VERSION,
    Manifest,
    Piece,
    StoredWeight,
    read_manifest,
    write_manifest,
)
from llmrs_cli.engine.weights.packed import Packed4, Permuted4, Weight
from llmrs_cli.engine.weights.parameters import Parameter
from llmrs_cli.engine.weights.pieces import (
    DTYPES,
    Pieces,
    converted_parameters,
    stored_parameters,
    tensor_name,
    to_pieces,
)
from llmrs_cli.engine.weights.writing import Entry, TensorFile
from llmrs_cli.errors import LlmrsError, ModelError
from llmrs_cli.kernels.marlin_layout import VERSION as LAYOUT

_LAYER = re.compile(r"model\.layers\.(\d+)\.")
REST = "rest"


def key_of(checkpoint: Checkpoint) -> str:
    """Changes with the source's files and with the order of the tiles; 16 hexadecimal digits."""
    return hashlib.sha256(f"{checkpoint.identity} {VERSION} {LAYOUT}".encode()).hexdigest()[:16]


def check_convertible(checkpoint: Checkpoint) -> None:
    """Raise ModelError for a model that is converted already or has no 4-bit layers, or that is incomplete."""
    where = shown(checkpoint.path)
    if checkpoint.converted_from is not None:
        raise ModelError(f"{where} is converted already.")
    if not any(_LAYER.match(name) and p.is_quantised for name, p in checkpoint.parameters.items()):
        raise ModelError(
            f"{where} has no 4-bit layers, so there is nothing to reorder.",
            hint="`llmrs quantize` makes a 4-bit model of a 16-bit one.",
        )
    check_parameters(checkpoint)


def convert(checkpoint: Checkpoint, name: str, folder: Path) -> Iterator[int]:
    """Write `checkpoint` to the empty `folder`; yields the bytes of the source done, file by file.

    `name` is what the user calls the model. Raises ModelError if no layer fits into tiles, LlmrsError if
    what is read back is not what was written. The files are whole when the iterator ends.
    """
    weights: dict[str, StoredWeight] = {}
    for group, parameters in _by_file(checkpoint.parameters).items():
        weights |= _write_group(folder / f"{group}.safetensors", parameters)
        if not any(weight.kind == "tiles" for weight in weights.values()):
            raise ModelError(
                f"The 4-bit layers of {shown(checkpoint.path)} do not fit into the kernels' tiles.",
                hint="There is nothing to convert: the model runs as it is.",
            )
        yield sum(parameter.nbytes for parameter in parameters.values())
    write_json(folder / CONFIG, plain_config(checkpoint))
    copy_companions(checkpoint, folder)
    small = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".safetensors")
    files = {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in small}
    stamps = {path.name: DataFile.open(path).stamp for path in sorted(folder.glob("*.safetensors"))}
    write_manifest(folder, Manifest(name, checkpoint.identity, weights, files, stamps))
    check_parameters(open_checkpoint(folder))


def check_converted(folder: Path) -> None:
    """Read all of a converted checkpoint against its digests; raises ModelError naming what is damaged."""
    checkpoint, manifest = open_checkpoint(folder), read_manifest(folder)
    if manifest is None:
        raise ModelError(f"{shown(folder)} is no converted checkpoint.")
    check_parameters(checkpoint)
    for parameter in converted_parameters(folder, manifest, anew=True).values():
        parameter.reader(stored=True)()


def _by_file(parameters: Mapping[str, Parameter]) -> dict[str, dict[str, Parameter]]:
    """File stem → parameters: layers in their order, then the rest."""
    groups: dict[str, dict[str, Parameter]] = {}
    for name, parameter in parameters.items():
        match = _LAYER.match(name)
        stem = f"layer-{int(match[1]):04d}" if match else REST
        groups.setdefault(stem, {})[name] = parameter
    return dict(sorted(groups.items()))


def _write_group(path: Path, parameters: Mapping[str, Parameter]) -> dict[str, StoredWeight]:
    """Write one file; prove that what is read back is what was meant."""
    weights = {name: parameter.read() for name, parameter in parameters.items()}
    stored: dict[str, StoredWeight] = {}
    tensors: Pieces = {}
    for name, weight in weights.items():
        kind, group, pieces = to_pieces(weight)
        places = {piece: Piece(path.name, digest(values)) for piece, values in pieces.items()}
        stored[name] = StoredWeight(parameters[name].shape, parameters[name].form, kind, group, places)
        tensors |= {tensor_name(name, piece): values for piece, values in pieces.items()}
    entries = {name: Entry(DTYPES[values.dtype.char], values.shape) for name, values in tensors.items()}
    with TensorFile(path, entries, {}) as file:
        for name, values in tensors.items():
            file.write(name, values)
    del tensors
    for name, parameter in stored_parameters(path.parent, stored, {}).items():
        if not _same(parameter.read(), weights[name]):
            raise LlmrsError(f"{shown(path)} was not written as it should be.", hint="Check the disk.")
    return stored


def _same(found: Weight, wanted: Weight) -> bool:
    """Whether two weights hold the same numbers."""
    if isinstance(found, Permuted4) and isinstance(wanted, Permuted4):
        return np.array_equal(found.inputs, wanted.inputs) and _same(found.weight, wanted.weight)
    if isinstance(found, Packed4) and isinstance(wanted, Packed4) and found.columns % 2:
        # Half of each row's last byte is nothing, and may differ.
        found, wanted = (replace(weight, codes=weight.unpack()) for weight in (found, wanted))
    return type(found) is type(wanted) and all(
        _equal(getattr(found, field.name), getattr(wanted, field.name)) for field in fields(found)
    )


def _equal(a: object, b: object) -> bool:
    """Bit by bit, NaN included."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
    return a is b or (type(a) is type(b) and a == b)
