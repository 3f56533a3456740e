"""safetensors files of ours are read by the format's own library, whatever order they are written in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file

from llmrs_cli.engine.weights.store import read_file
from llmrs_cli.engine.weights.writing import Entry, TensorFile

KINDS = {"F16": np.float16, "F32": np.float32, "I32": np.int32, "U8": np.uint8, "I8": np.int8}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=6),
    rows=st.integers(1, 5),
    columns=st.integers(1, 4),
    order=st.randoms(use_true_random=False),
)
def test_any_file_is_read_back_by_the_format_s_own_library(
    tmp_path: Path, kinds: list[str], rows: int, columns: int, order: Any
) -> None:
    path = tmp_path / "x.safetensors"
    path.unlink(missing_ok=True)
    rng = np.random.default_rng(rows)
    entries = {f"t{i}": Entry(kind, (rows, columns)) for i, kind in enumerate(kinds)}
    values = {name: rng.integers(0, 99, entry.shape).astype(entry.kind) for name, entry in entries.items()}
    pieces = [(name, row) for name in entries for row in range(rows)]
    order.shuffle(pieces)
    with TensorFile(path, entries, {"format": "pt"}) as file:
        for name, row in pieces:
            file.write(name, values[name][row : row + 1], row)
    found = load_file(path)
    assert found.keys() == values.keys()
    for name, expected in values.items():
        np.testing.assert_array_equal(found[name], expected)
    assert read_file(path).keys() == values.keys()
    with safe_open(path, "np") as opened:
        assert opened.metadata() == {"format": "pt"}


def test_every_tensor_begins_on_a_multiple_of_its_width(tmp_path: Path) -> None:
    entries = {"a": Entry("U8", (3,)), "b": Entry("F16", (3,)), "c": Entry("I32", (1,))}
    with TensorFile(tmp_path / "x", entries, {}) as file:
        for name, entry in entries.items():
            file.write(name, np.ones(entry.shape, entry.kind))
    data = (tmp_path / "x").read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    assert {name: header[name]["data_offsets"] for name in entries} == {
        "c": [0, 4],
        "b": [4, 10],
        "a": [10, 13],
    }


def test_a_file_that_lacks_a_tensor_is_a_bug(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="'a'"), TensorFile(tmp_path / "x", {"a": Entry("U8", (3,))}, {}):
        pass


@pytest.mark.parametrize("values", [np.ones(3, np.int8), np.ones((3, 1), np.uint8), np.ones(4, np.uint8)])
def test_values_of_another_kind_or_shape_are_a_bug(tmp_path: Path, values: Any) -> None:
    with pytest.raises(AssertionError), TensorFile(tmp_path / "x", {"a": Entry("U8", (3,))}, {}) as file:
        file.write("a", values)


def test_an_error_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(KeyError), TensorFile(tmp_path / "x", {"a": Entry("U8", (3,))}, {}) as file:
        file.write("b", np.ones(3, np.uint8))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    with pytest.raises(FileExistsError):
        TensorFile(tmp_path / "x", {"a": Entry("U8", (3,))}, {})
    assert (tmp_path / "x").read_text() == "mine"
