"""The manifest of a converted checkpoint: what it was made of, how each weight is stored, and a digest of everything.

    llmrs.json    {"format", "version", "layout", "made_by", "source": {"name", "identity"},
                   "weights": {name: {"shape", "form", "kind", "group", "pieces": {piece: {"file", "digest"}}}},
                   "files": {name: sha256}, "stamps": {file: [inode, bytes, ns]}, "seal"}

The seal is the hash of all else in the manifest, so that damage anywhere is found: in a weight when it is
read, elsewhere when the checkpoint is opened. It keeps out accidents, not forgers.

Stamps are those of the files of weights when they had been read back and compared. While a file has its stamp
it is what was written, as far as the system knows, and is not summed again: downloads are trusted in the same
way. A copy that was moved to another disk or machine, or that was changed, has other stamps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrs_cli import __version__
from llmrs_cli.engine.weights.companions import write_json
from llmrs_cli.engine.weights.files import Stamp, read_object, shown
from llmrs_cli.errors import ModelError
from llmrs_cli.kernels.marlin_layout import VERSION as LAYOUT

MANIFEST = "llmrs.json"
FORMAT, VERSION = "llmrs converted checkpoint", 2
CONVERT_AGAIN = "Convert the model again."


@dataclass(frozen=True, slots=True)
class Piece:
    """One stored tensor of a weight."""

    file: str
    digest: str
    """See `checksum.digest`."""


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """How one parameter is stored."""

    shape: tuple[int, ...]
    form: str
    """In words, as its source had it."""
    kind: str
    """See `converted.KINDS`."""
    group: int
    """G of a packed weight, else 0."""
    pieces: Mapping[str, Piece]


@dataclass(frozen=True, slots=True)
class Manifest:
    """A converted checkpoint, described."""

    source: str
    """The name it was converted under."""
    identity: str
    """Of its source (`Checkpoint.identity`)."""
    weights: Mapping[str, StoredWeight]
    files: Mapping[str, str]
    """Small files and their hashes."""
    stamps: Mapping[str, Stamp]
    """Files of weights as they were when they had been proved."""

    def seal(self) -> str:
        """Hexadecimal; changes with anything in the manifest."""
        return _seal(_as_json(self))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """The last file of a conversion."""
    write_json(folder / MANIFEST, _as_json(manifest) | {"seal": manifest.seal()})


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a converted checkpoint, None if `folder` is something else.

    Raises ModelError if it is damaged, or made for another version of llmrs.
    """
    path = folder / MANIFEST
    if not path.exists():
        return None
    values = read_object(path, unique=True)
    seal = values.pop("seal", None)
    if values.get("format") != FORMAT or seal != _seal(values):
        raise ModelError(f"{shown(path)} is damaged.", hint=CONVERT_AGAIN)
    if (values.get("version"), values.get("layout")) != (VERSION, LAYOUT):
        raise ModelError(f"{shown(folder)} was converted for another version of llmrs.", hint=CONVERT_AGAIN)
    try:
        return _from_json(values)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ModelError(f"{shown(path)} is no manifest of ours.", hint=CONVERT_AGAIN) from error


def _as_json(manifest: Manifest) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "layout": LAYOUT,
        "made_by": f"llmrs {__version__}",
        "source": {"name": manifest.source, "identity": manifest.identity},
        "weights": {
            name: {
                "shape": list(weight.shape),
                "form": weight.form,
                "kind": weight.kind,
                "group": weight.group,
                "pieces": {
                    piece: {"file": place.file, "digest": place.digest}
                    for piece, place in weight.pieces.items()
                },
            }
            for name, weight in manifest.weights.items()
        },
        "files": dict(manifest.files),
        "stamps": {file: list(stamp) for file, stamp in manifest.stamps.items()},
    }


def _from_json(values: Mapping[str, Any]) -> Manifest:
    weights = {
        name: StoredWeight(
            shape=tuple(int(size) for size in entry["shape"]),
            form=str(entry["form"]),
            kind=str(entry["kind"]),
            group=int(entry["group"]),
            pieces={piece: Piece(str(p["file"]), str(p["digest"])) for piece, p in entry["pieces"].items()},
        )
        for name, entry in values["weights"].items()
    }
    source = values["source"]
    files = {str(name): str(found) for name, found in values["files"].items()}
    stamps = {str(file): _stamp(*stamp) for file, stamp in values["stamps"].items()}
    return Manifest(str(source["name"]), str(source["identity"]), weights, files, stamps)


def _stamp(inode: int, size: int, changed: int) -> Stamp:
    return int(inode), int(size), int(changed)


def _seal(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
