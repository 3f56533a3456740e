"""safetensors files: what is sound is read as the reference library reads it, the rest is refused by name.

Longer than most files: it is a list of the damage that a file can have.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from llmrs_cli.engine.weights.store import INDEX, SINGLE, read_file, read_folder
from llmrs_cli.errors import ModelError
from tests.helpers.safetensors_file import Entry, entry, file_of, raw_file

F32 = np.arange(6, dtype=np.float32).reshape(2, 3)


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_file(path)
    message = str(caught.value)
    assert str(path) in message and len(message) < 700
    return message


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / SINGLE
    save_file({"a": F32, "b": np.array([1, 2], np.int32), "c": np.zeros((0,), np.float16)}, path)
    return path


# -- sound files ----------------------------------------------------------------------------------------


def test_values_are_those_of_the_reference_library(sound: Path) -> None:
    ours = {name: tensor.read() for name, tensor in read_file(sound).items()}
    theirs = load_file(sound)
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        assert ours[name].dtype == values.dtype and ours[name].shape == values.shape
        np.testing.assert_array_equal(ours[name], values)


def test_bfloat16_comes_as_bit_patterns(tmp_path: Path) -> None:
    path = file_of(tmp_path / "x", {"a": entry("BF16", [2], 0, 4)}, b"\x80\x3f\x00\xc0")
    assert read_file(path)["a"].read().tolist() == [0x3F80, 0xC000]


@pytest.mark.parametrize(
    ("entries", "data"),
    [
        ({"__metadata__": {"format": "pt"}, "a": entry("F32", [1], 0, 4)}, bytes(4)),
        ({"a": entry("F32", [0], 0, 0), "b": entry("F32", [1], 0, 4)}, bytes(4)),
        ({"b": entry("F32", [1], 4, 8), "a": entry("F32", [1], 0, 4)}, bytes(8)),
        ({"a": entry("F32", [], 0, 4)}, bytes(4)),
        ({}, b""),
        ({"a": entry("F32", [0, 9], 4, 4), "b": entry("F32", [1], 0, 4)}, bytes(4)),
    ],
    ids=["metadata", "empty tensor", "unordered", "scalar", "no tensor", "empty tensor at the end"],
)
@pytest.mark.parametrize("pad", [0, 7])
def test_odd_but_sound_files_are_read(
    tmp_path: Path, entries: dict[str, Entry], data: bytes, pad: int
) -> None:
    path = file_of(tmp_path / "x", entries, data, pad=pad)
    with safe_open(path, "np") as theirs:
        assert set(theirs.keys()) == set(read_file(path))
    for tensor in read_file(path).values():
        assert tensor.read().shape == tensor.shape


# -- unsound files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "empty"),
        (b"\x00" * 7, "only 7 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 9\n", "Git LFS"),
        (b"\n<!DOCTYPE html><html><title>404</title></html>", "HTML"),
        (b"PK\x03\x04" + b"\x00" * 60, "pickle or zip"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "Python pickle"),
        (b"GGUF" + bytes(40), "GGUF"),
        ((2**60).to_bytes(8, "little") + b"{}", str(2**60)),
        ((2**63).to_bytes(8, "little") + b"{}", str(2**63)),
    ],
)
def test_what_is_no_safetensors_file_is_called_what_it_is(tmp_path: Path, data: bytes, cause: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    assert cause in refusal(path)


def test_a_header_length_that_looks_like_a_pickle_is_none(tmp_path: Path) -> None:
    """640 bytes of header begin the file with 80 02."""
    header = json.dumps({"a": entry("F32", [1], 0, 4)}).encode()
    assert "a" in read_file(raw_file(tmp_path / "x", header.ljust(640), bytes(4)))


@pytest.mark.parametrize(
    ("header", "cause"),
    [
        (b"\xff\xfe{}", "no JSON object"),
        (b'{"\xff": 1}', "UTF-8"),
        (b"{]", "not valid JSON"),
        (b"[1]", "no JSON object"),
        (b'{"a":' + b"[" * 100_000, "nested too deeply"),
        (b'{"a":1}', "not described"),
        (
            b'{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
            "two entries named 'dtype'",
        ),
        (b'{"a":' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_a_header_that_is_no_header_is_refused(tmp_path: Path, header: bytes, cause: str) -> None:
    assert cause in refusal(raw_file(tmp_path / "x", header))


def test_a_header_longer_than_the_file_is_truncation(tmp_path: Path) -> None:
    assert "truncated" in refusal(raw_file(tmp_path / "x", b"{}", length=5000))


def test_an_enormous_header_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.write((68_000_000).to_bytes(8, "little"))
        file.truncate(80_000_000)
    assert "68000000" in refusal(path)


def test_too_many_tensors_are_refused(tmp_path: Path) -> None:
    empty = entry("U8", [0], 0, 0)
    many = {f"{i}": empty for i in range(100_001)}
    assert "100001 tensors" in refusal(file_of(tmp_path / "x", many, b""))


def test_a_name_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    one = json.dumps(entry("F32", [1], 0, 4))
    header = f'{{"a": {one}, "a": {one}}}'.encode()
    path = raw_file(tmp_path / "x", header, bytes(4))
    assert "two entries named 'a'" in refusal(path)


A = entry("F32", [1], 0, 4)


@pytest.mark.parametrize(
    ("entries", "size", "cause"),
    [
        ({"a": A, "b": entry("F32", [1], 0, 4)}, 8, "overlaps"),
        ({"a": A, "b": entry("F32", [1], 2, 6)}, 6, "overlaps"),
        ({"a": A, "b": entry("F32", [1], 8, 12)}, 12, "hole"),
        ({"a": entry("F32", [1], 4, 8)}, 8, "hole"),
        ({"a": A}, 3, "truncated"),
        ({"a": A}, 5, "1 bytes after its last tensor"),
        ({}, 1, "1 bytes after its last tensor"),
        ({"a": entry("F32", [2], 0, 4)}, 4, "has 4 bytes of data; F32 of shape [2] takes 8"),
        ({"a": entry("F32", [-1], 0, 4)}, 4, "no valid shape"),
        ({"a": entry("F32", [True], 0, 4)}, 4, "no valid shape"),
        ({"a": entry("F32", [1.0], 0, 4)}, 4, "no valid shape"),
        ({"a": entry("F32", "1", 0, 4)}, 4, "no valid shape"),
        ({"a": entry("F32", [2**62, 2**62], 0, 4)}, 4, "takes"),
        ({"a": entry("F32", [2**64], 0, 4)}, 4, "no valid shape"),
        ({"a": entry("F32", [1], 4, 0)}, 4, "no valid data_offsets"),
        ({"a": entry("F32", [1], -4, 0)}, 4, "no valid data_offsets"),
        ({"a": entry("F32", [1], 0, "4")}, 4, "no valid data_offsets"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}, 4, "no valid data_offsets"),
        ({"a": {"dtype": "F32", "shape": [1]}}, 4, "not described"),
        ({"a": entry("F33", [1], 0, 4)}, 4, "unknown dtype 'F33'"),
        ({"a": {**A, "dtype": ["F32"]}}, 4, "unknown dtype"),
        ({"\x1b[2J" + "x" * 9999: entry("F33", [1], 0, 4)}, 4, "unknown dtype"),
    ],
)
def test_a_tensor_that_does_not_fit_its_file_is_named(
    tmp_path: Path, entries: dict[str, Entry], size: int, cause: str
) -> None:
    path = file_of(tmp_path / "x", entries, bytes(size))
    message = refusal(path)
    assert cause in message and "\x1b" not in message
    with pytest.raises(SafetensorError), safe_open(path, "np"):
        pass


def test_more_than_eight_dimensions_are_refused(tmp_path: Path) -> None:
    assert "no valid shape" in refusal(file_of(tmp_path / "x", {"a": entry("F32", [1] * 9, 0, 4)}, bytes(4)))


@pytest.mark.parametrize("cut", [1, 5, 24])
def test_a_file_cut_short_says_how_much_is_missing(sound: Path, cut: int) -> None:
    size = sound.stat().st_size
    os.truncate(sound, size - cut)
    message = refusal(sound)
    assert "truncated" in message and str(size) in message and str(size - cut) in message


def test_a_folder_or_a_missing_file_in_place_of_the_weights_is_named(tmp_path: Path) -> None:
    assert "not a file" in refusal(tmp_path)
    assert "no such file" in refusal(tmp_path / "absent")


def test_truncation_after_opening_is_an_error_and_no_crash(sound: Path) -> None:
    tensors = read_file(sound)
    os.truncate(sound, sound.stat().st_size - 4)
    with pytest.raises(ModelError, match="changed while it was being read"):
        tensors["a"].read()


def test_a_file_that_was_replaced_after_opening_is_noticed(sound: Path) -> None:
    tensors = read_file(sound)
    other = sound.with_name("other")
    other.write_bytes(sound.read_bytes())
    other.replace(sound)
    with pytest.raises(ModelError, match="changed"):
        tensors["a"].read()


def test_what_was_read_outlives_the_file(sound: Path) -> None:
    values = read_file(sound)["a"].read()
    os.truncate(sound, 0)
    np.testing.assert_array_equal(values, F32)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_any_changed_bytes_are_read_or_refused(tmp_path: Path, flips: list[tuple[int, int]]) -> None:
    path = tmp_path / "fuzzed"
    save_file({"a": F32, "b": np.array([1, 2], np.int32)}, path, metadata={"format": "pt"})
    data = bytearray(path.read_bytes())
    for place, value in flips:
        data[place % len(data)] = value
    path.write_bytes(data)
    try:
        tensors = read_file(path)
    except ModelError:
        return
    for tensor in tensors.values():
        assert tensor.read().nbytes == tensor.nbytes <= len(data)


# -- folders --------------------------------------------------------------------------------------------


def shards(folder: Path, **changes: Any) -> Path:
    """Two shards with an index; `changes` replace places in it."""
    save_file({"a": F32}, folder / "model-00001-of-00002.safetensors")
    save_file({"b": F32 + 1}, folder / "model-00002-of-00002.safetensors")
    placed = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": placed | changes}))
    return folder


def folder_refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_folder(folder)
    return str(caught.value)


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    tensors, notes = read_folder(shards(tmp_path))
    assert notes == []
    np.testing.assert_array_equal(tensors["b"].read(), F32 + 1)
    assert set(tensors) == {"a", "b"}


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (shards(tmp_path) / "model-00002-of-00002.safetensors").unlink()
    message = folder_refusal(tmp_path)
    assert "'model-00002-of-00002.safetensors'" in message and INDEX in message


def test_a_truncated_shard_is_named(tmp_path: Path) -> None:
    os.truncate(shards(tmp_path) / "model-00002-of-00002.safetensors", 60)
    assert "model-00002-of-00002.safetensors' is truncated" in folder_refusal(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/etc/passwd",
        "/tmp/x.safetensors",
        "C:\\x.safetensors",
        "\\\\host\\x.safetensors",
        "sub/x.safetensors",
        "..",
        ".safetensors",
        "a.bin",
        "x.safetensors\x00",
        "x.safetensors\n",
        "",
        7,
        None,
    ],
)
def test_an_index_may_name_only_files_beside_it(
    tmp_path: Path, name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = os.open

    def watched(path: Any, *rest: Any) -> int:
        opened.append(str(path))
        return real(path, *rest)

    monkeypatch.setattr(os, "open", watched)
    message = folder_refusal(shards(tmp_path, b=name))
    assert "no safetensors file beside it" in message
    assert opened and all(Path(path).parent == tmp_path for path in opened)


def test_a_tensor_that_is_not_where_the_index_says_is_named(tmp_path: Path) -> None:
    assert "'c'" in folder_refusal(shards(tmp_path, c="model-00001-of-00002.safetensors"))
    assert "'b'" in folder_refusal(
        shards(tmp_path, b="model-00001-of-00002.safetensors", a="model-00002-of-00002.safetensors")
    )


def test_a_tensor_in_two_shards_is_named(tmp_path: Path) -> None:
    save_file({"a": F32, "b": F32}, shards(tmp_path) / "model-00002-of-00002.safetensors")
    assert "two shards" in folder_refusal(tmp_path)


@pytest.mark.parametrize("index", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "{", ""])
def test_an_index_that_is_none_is_refused(tmp_path: Path, index: str) -> None:
    (shards(tmp_path) / INDEX).write_text(index)
    assert INDEX in folder_refusal(tmp_path)


def test_a_whole_file_goes_before_a_stale_index_with_a_note(tmp_path: Path) -> None:
    save_file({"z": F32}, tmp_path / SINGLE)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors"}}))
    tensors, notes = read_folder(tmp_path)
    assert set(tensors) == {"z"}
    assert len(notes) == 1 and INDEX in notes[0]


def test_a_lone_file_may_have_any_name_but_two_need_an_index(tmp_path: Path) -> None:
    save_file({"z": F32}, tmp_path / "weights.safetensors")
    assert set(read_folder(tmp_path)[0]) == {"z"}
    save_file({"y": F32}, tmp_path / "more.safetensors")
    assert "several" in folder_refusal(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth"])
def test_pickled_weights_are_never_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04")
    assert "never open" in folder_refusal(tmp_path)


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    assert SINGLE in folder_refusal(tmp_path)
