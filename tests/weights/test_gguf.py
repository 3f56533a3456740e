"""The GGUF container: sound files are read as the oracle package reads them, the rest is refused by name."""

from __future__ import annotations

import os
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf as oracle
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.engine.weights.gguf import Gguf, read_gguf
from llmrs_cli.errors import ModelError
from tests.helpers.gguf_file import (
    ARRAY,
    BOOL,
    FLOAT32,
    INT32,
    STRING,
    UINT32,
    UINT64,
    GgufFile,
    Tensor,
    array,
    plain,
    text,
    value,
)
from tests.helpers.tiny_gguf import write_tiny_gguf
from tests.helpers.tiny_model import TinyModel

A = Tensor("a", (4,), 0, np.arange(4, dtype="<f4").tobytes())
B = Tensor("b", (3, 2), 1, np.arange(6, dtype="<f2").tobytes())
SOUND = GgufFile([("general.architecture", plain("llama")), ("n", plain(7))], [A, B])


def written(folder: Path, file: GgufFile) -> Path:
    path = folder / "x.gguf"
    path.write_bytes(file.build())
    return path


def read(folder: Path, file: GgufFile) -> Gguf:
    return read_gguf(written(folder, file))


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_gguf(path)
    message = str(caught.value)
    assert str(path) in message and len(message) < 700
    return message


# -- sound files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
def test_values_of_every_kind_are_read(tmp_path: Path, version: int) -> None:
    metadata = {
        "u": value(UINT32, 2**32 - 1),
        "i": value(INT32, -5),
        "f": value(FLOAT32, 0.5),
        "q": value(UINT64, 2**64 - 1),
        "yes": value(BOOL, True),
        "s": value(STRING, "grüße"),
        "empty": value(STRING, ""),
        "words": array(STRING, ["", "a", "ß" * 300]),
        "none": array(STRING, []),
        "numbers": array(INT32, [1, -2, 3]),
        "flags": array(BOOL, [True, False]),
    }
    assert read(tmp_path, GgufFile(list(metadata.items()), version=version)).metadata == {
        "u": 2**32 - 1,
        "i": -5,
        "f": 0.5,
        "q": 2**64 - 1,
        "yes": True,
        "s": "grüße",
        "empty": "",
        "words": ["", "a", "ß" * 300],
        "none": [],
        "numbers": [1, -2, 3],
        "flags": [True, False],
    }


def test_tensors_are_rows_of_bytes_with_the_outermost_size_first(tmp_path: Path) -> None:
    tensors = read(tmp_path, SOUND).tensors
    assert (tensors["a"].shape, tensors["b"].shape) == ((4,), (2, 3))
    assert tensors["b"].format.name == "F16"
    np.testing.assert_array_equal(tensors["b"].read().view("<f2"), np.arange(6).reshape(2, 3))


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_the_alignment_of_the_file_counts(tmp_path: Path, alignment: int) -> None:
    metadata = [("general.alignment", plain(alignment))]
    tensors = read(tmp_path, GgufFile(metadata, [A, B], alignment=alignment)).tensors
    np.testing.assert_array_equal(tensors["b"].read().view("<f2").ravel(), np.arange(6))


def test_the_last_tensor_may_be_padded_to_the_alignment(tmp_path: Path) -> None:
    assert set(read(tmp_path, replace(SOUND, tail=bytes(20))).tensors) == {"a", "b"}


def test_strings_longer_than_one_fetch_are_read(tmp_path: Path) -> None:
    words = ["x" * 700_000, "y" * 3_000_000, "z"]
    assert read(tmp_path, GgufFile([("w", array(STRING, words)), ("n", plain(1))])).metadata == {
        "w": words,
        "n": 1,
    }


def test_headers_equal_those_of_the_oracle_package(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "x.gguf", TinyModel("qwen3"))
    ours, theirs = read_gguf(path), oracle.GGUFReader(path)
    for field in theirs.fields.values():
        if not field.name.startswith("GGUF."):
            assert ours.metadata[field.name] == field.contents()
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert (mine.offset, mine.nbytes) == (tensor.data_offset, tensor.n_bytes)


# -- unsound files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "empty"),
        (b"GGUF", "truncated"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"<html>" + bytes(50), "HTML"),
        (bytes(100), "something else, not a GGUF file"),
        (b"GG", "something else"),
    ],
)
def test_what_is_no_gguf_file_is_called_what_it_is(tmp_path: Path, content: bytes, cause: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    assert cause in refusal(path)


def changed(**changes: Any) -> GgufFile:
    return replace(SOUND, **changes)


def with_value(encoded: bytes) -> GgufFile:
    return changed(metadata=[("k", encoded)])


def with_tensor(*tensors: Tensor) -> GgufFile:
    return changed(tensors=list(tensors))


def string_of(length: int) -> bytes:
    return struct.pack("<IQ", STRING, length)


def array_of(kind: int, count: int) -> bytes:
    return struct.pack("<IIQ", ARRAY, kind, count)


@pytest.mark.parametrize(
    ("file", "cause"),
    [
        (changed(version=1), "version 1; we read 2 and 3"),
        (changed(version=4), "version 4"),
        (changed(version=3 << 24), "big-endian"),
        (changed(tensor_count=2**64 - 1), f"{2**64 - 1} tensors"),
        (changed(tensor_count=100_001), "100001 tensors"),
        (changed(tensor_count=3), "at a tensor's name"),
        (changed(key_count=2**64 - 1), f"{2**64 - 1} metadata keys"),
        (changed(key_count=2**16 + 1), "65537 metadata keys"),
        (changed(metadata=[("n", plain(1)), ("n", plain(2))]), "two metadata keys 'n'"),
        (changed(metadata=[("x" * 5000, plain(1))]), "5000 bytes at a metadata key"),
        (changed(metadata=[(b"\xff", plain(1))]), "not UTF-8 at a metadata key"),
        (with_value(struct.pack("<I", 13)), "value type 13 at metadata key 'k'"),
        (with_value(struct.pack("<IB", BOOL, 2)), "neither 0 nor 1 at metadata key 'k'"),
        (with_value(value(STRING, b"\xff\xfe")), "not UTF-8 at metadata key 'k'"),
        (with_value(string_of(2**63)), f"string of {2**63} bytes at metadata key 'k'"),
        (with_value(string_of(2**24 + 1)), "string of 16777217 bytes"),
        (with_value(string_of(10_000)), "truncated: it ends within metadata key 'k'"),
        (with_value(array_of(ARRAY, 1) + array(INT32, [1])), "array of arrays at metadata key 'k'"),
        (with_value(array_of(99, 1)), "array of the unknown value type 99"),
        (with_value(array_of(INT32, 2**64 - 1)), f"{2**64 - 1} values"),
        (with_value(array_of(INT32, 2**20)), "truncated"),
        (with_value(array_of(STRING, 2**64 - 1)), f"{2**64 - 1} values"),
        (with_value(array_of(STRING, 2**20)), "truncated"),
        (with_value(array_of(STRING, 1) + struct.pack("<Q", 2**63) + bytes(99)), "truncated"),
        (with_value(array_of(STRING, 2) + text("a") + text(b"\xff")), "not UTF-8"),
        (with_value(array_of(BOOL, 2) + b"\x01\x07"), "neither 0 nor 1"),
        (changed(metadata=[("general.alignment", plain(0))]), "general.alignment 0"),
        (changed(metadata=[("general.alignment", plain(13))]), "general.alignment 13"),
        (changed(metadata=[("general.alignment", plain(1 << 17))]), "general.alignment 131072"),
        (changed(metadata=[("general.alignment", plain("32"))]), "general.alignment '32'"),
        (changed(metadata=[("split.count", plain(2))]), "one part of a split model"),
        (with_tensor(replace(A, sizes=())), "0 dimensions"),
        (with_tensor(replace(A, sizes=(2, 1, 1, 1, 2))), "5 dimensions"),
        (with_tensor(replace(A, sizes=(0,))), "impossible shape"),
        (with_tensor(replace(A, sizes=(2**63,))), "impossible shape"),
        (with_tensor(replace(A, sizes=(2**32, 2**32))), "impossible shape"),
        (with_tensor(replace(A, sizes=(2**31,))), "truncated"),
        (with_tensor(replace(A, kind=99)), "'a' of type 99"),
        (with_tensor(replace(A, kind=4)), "'a' of type 4"),
        (with_tensor(replace(A, kind=2)), "rows of 4, no multiple of 32"),
        (with_tensor(replace(A, kind=12, sizes=(128, 2))), "rows of 128, no multiple of 256"),
        (with_tensor(replace(A, name="x" * 257)), "257 bytes at a tensor's name"),
        (with_tensor(replace(A, name="x" * 10_000_000)), "10000000 bytes at a tensor's name"),
        (with_tensor(replace(A, offset=4)), "at offset 4, not at 0"),
        (with_tensor(A, replace(B, offset=0)), "at offset 0, not at 32"),
        (with_tensor(A, replace(B, offset=64)), "at offset 64, not at 32"),
        (with_tensor(A, replace(B, offset=2**63)), f"at offset {2**63}"),
        (with_tensor(A, A), "two tensors 'a'"),
        (changed(tail=bytes(64)), "bytes after its last tensor"),
    ],
)
def test_a_field_that_is_wrong_is_named(tmp_path: Path, file: GgufFile, cause: str) -> None:
    path = written(tmp_path, file)
    tracemalloc.start()
    message = refusal(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert cause in message
    assert peak < 32 << 20


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = SOUND.build()
    path = tmp_path / "x.gguf"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError):
            read_gguf(path)


def test_metadata_past_the_limit_are_refused_however_large_the_file(tmp_path: Path) -> None:
    """A sparse file of 90 MB whose header claims four arrays of 16 MB and a fifth."""
    arrays = [(f"k{i}", array_of(UINT64, 2 << 20) + bytes(16 << 20)) for i in range(5)]
    path = written(tmp_path, changed(metadata=arrays))
    assert "more than 67108864 bytes of metadata" in refusal(path)


def test_a_tensor_truncated_after_opening_is_an_error_and_no_crash(tmp_path: Path) -> None:
    path = written(tmp_path, SOUND)
    tensors = read_gguf(path).tensors
    os.truncate(path, path.stat().st_size - 2)
    with pytest.raises(ModelError, match="changed"):
        tensors["b"].read()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(flips=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=4))
def test_any_changed_header_bytes_are_read_or_refused(tmp_path: Path, flips: list[tuple[int, int]]) -> None:
    """Opening goes all the way: configuration, names, shapes and tokenizer."""
    path = tmp_path / "x.gguf"
    if not path.exists():
        write_tiny_gguf(path, TinyModel("llama", layers=1, hidden=32, ffn=32, vocab=32))
    data = bytearray(path.read_bytes())
    for place, changed_to in flips:
        data[place] = changed_to
    fuzzed = tmp_path / "fuzzed.gguf"
    fuzzed.write_bytes(data)
    try:
        checkpoint = open_checkpoint(fuzzed)
        for parameter in checkpoint.parameters.values():
            assert parameter.nbytes <= len(data)
    except ModelError as error:
        assert len(str(error)) < 1000
