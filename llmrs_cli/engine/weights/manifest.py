"""The manifest of a converted checkpoint: what it was made of, how each weight is stored, and a hash of everything.

    llmrs.json    {"format", "version", "layout", "made_by", "source": {"name", "identity"},
                   "weights": {name: {"shape", "form", "kind", "group", "pieces": {piece: {"file", "sha256"}}}},
                   "files": {name: sha256}, "seal"}

The seal is the hash of all else in the manifest, so that damage anywhere is found: in a weight when it is
read, elsewhere when the checkpoint is opened. It keeps out accidents, not forgers.
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
from llmrs_cli.engine.weights.files import read_object, shown
from llmrs_cli.errors import ModelError
from llmrs_cli.kernels.marlin_layout import VERSION as LAYOUT

MANIFEST = "llmrs.json"
FORMAT, VERSION = "llmrs converted checkpoint", 1
CONVERT_AGAIN = "Convert the model again."


@dataclass(frozen=True, slots=True)
class Piece:
    """One stored tensor of a weight."""

    file: str
    sha256: str


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
                    piece: {"file": place.file, "sha256": place.sha256}
                    for piece, place in weight.pieces.items()
                },
            }
            for name, weight in manifest.weights.items()
        },
        "files": dict(manifest.files),
    }


def _from_json(values: Mapping[str, Any]) -> Manifest:
    weights = {
        name: StoredWeight(
            shape=tuple(int(size) for size in entry["shape"]),
            form=str(entry["form"]),
            kind=str(entry["kind"]),
            group=int(entry["group"]),
            pieces={piece: Piece(str(p["file"]), str(p["sha256"])) for piece, p in entry["pieces"].items()},
        )
        for name, entry in values["weights"].items()
    }
    source = values["source"]
    files = {str(name): str(digest) for name, digest in values["files"].items()}
    return Manifest(str(source["name"]), str(source["identity"]), weights, files)


def _seal(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
