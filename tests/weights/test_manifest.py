"""The manifest of a converted checkpoint says the same when it is read, and no change of it goes unnoticed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmrs_cli.engine.weights import manifest as module
from llmrs_cli.engine.weights.manifest import (
    MANIFEST,
    Manifest,
    Piece,
    StoredWeight,
    read_manifest,
    write_manifest,
)
from llmrs_cli.errors import ModelError

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=8)
PIECES = st.builds(Piece, file=NAMES, digest=st.text("0123456789abcdef", max_size=8))
WEIGHTS = st.builds(
    StoredWeight,
    shape=st.lists(st.integers(1, 10**6), min_size=1, max_size=2).map(tuple),
    form=NAMES,
    kind=st.sampled_from(["dense", "tiles", "packed4", "packed8"]),
    group=st.integers(0, 10**6),
    pieces=st.dictionaries(st.sampled_from(["", "tiles", "codes", "scales"]), PIECES, min_size=1),
)
MANIFESTS = st.builds(
    Manifest,
    source=NAMES,
    identity=NAMES,
    weights=st.dictionaries(NAMES, WEIGHTS, max_size=4),
    files=st.dictionaries(NAMES, NAMES, max_size=4),
    stamps=st.dictionaries(NAMES, st.tuples(*3 * [st.integers(0, 2**63)]), max_size=4),
)
ONE = Manifest(
    "name",
    "identity",
    {"w": StoredWeight((4, 32), "4-bit", "tiles", 32, {"tiles": Piece("rest.safetensors", "ab")})},
    {"config.json": "cd"},
    {"rest.safetensors": (1, 2, 3)},
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(manifest=MANIFESTS)
def test_any_manifest_is_read_as_it_was_written(tmp_path: Path, manifest: Manifest) -> None:
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest


@pytest.mark.parametrize(
    "other",
    [
        replace(ONE, source="other"),
        replace(ONE, identity="other"),
        replace(ONE, files={"config.json": "ce"}),
        replace(ONE, files={}),
        replace(ONE, weights={}),
        replace(ONE, stamps={"rest.safetensors": (1, 2, 4)}),
        replace(ONE, weights={"w": replace(ONE.weights["w"], group=64)}),
        replace(ONE, weights={"w": replace(ONE.weights["w"], shape=(32, 4))}),
        replace(ONE, weights={"w": replace(ONE.weights["w"], pieces={"tiles": Piece("x", "ab")})}),
    ],
)
def test_every_field_is_under_the_seal(other: Manifest) -> None:
    assert other.seal() != ONE.seal()


def test_a_folder_without_a_manifest_is_something_else(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None


def changed(folder: Path, **changes: Any) -> None:
    """Values of the stored manifest, with the seal as it was."""
    write_manifest(folder, ONE)
    path = folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    "changes",
    [{"source": {"name": "x", "identity": "y"}}, {"layout": 9}, {"more": 1}, {"seal": None}, {"format": "x"}],
)
def test_a_change_that_is_not_sealed_is_damage(tmp_path: Path, changes: dict[str, Any]) -> None:
    changed(tmp_path, **changes)
    with pytest.raises(ModelError, match="is damaged") as caught:
        read_manifest(tmp_path)
    assert caught.value.hint == "Convert the model again."


@pytest.mark.parametrize("content", ["", "[]", "{", '{"seal": 1, "seal": 2}', '{"format": []}', "\x00"])
def test_what_is_no_manifest_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(ModelError):
        read_manifest(tmp_path)


@pytest.mark.parametrize("what", ["VERSION", "LAYOUT"])
def test_another_version_is_told_from_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    write_manifest(tmp_path, ONE)
    monkeypatch.setattr(module, what, 99)
    with pytest.raises(ModelError, match="for another version of llmrs"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weights", None),
        ("weights", {"w": {}}),
        ("weights", {"w": {"shape": ["x"], "form": "", "kind": "", "group": 0, "pieces": {}}}),
        ("weights", {"w": {"shape": [1], "form": "", "kind": "", "group": "x", "pieces": {}}}),
        ("weights", {"w": {"shape": [1], "form": "", "kind": "", "group": 0, "pieces": {"": "x"}}}),
        ("source", []),
        ("files", ["x"]),
    ],
)
def test_a_sealed_manifest_of_another_make_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    write_manifest(tmp_path, ONE)
    values = json.loads((tmp_path / MANIFEST).read_text()) | {field: value}
    del values["seal"]
    (tmp_path / MANIFEST).write_text(json.dumps(values | {"seal": module._seal(values)}))
    with pytest.raises(ModelError, match="is no manifest of ours"):
        read_manifest(tmp_path)
