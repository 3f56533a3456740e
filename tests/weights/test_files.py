"""Reading files by position: the bytes that are there or one sentence, and never a file that has changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine.weights import files
from llmrs_cli.engine.weights.files import DataFile, parse_object, read_object, read_small
from llmrs_cli.errors import DoesNotFitError, ModelError

CONTENT = bytes(range(256)) * 4


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


@given(st.integers(0, len(CONTENT)), st.integers(0, len(CONTENT)))
def test_any_part_is_what_stands_there(
    tmp_path_factory: pytest.TempPathFactory, offset: int, count: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "parts"
    path.write_bytes(CONTENT)
    file = DataFile.open(path)
    if offset + count > len(CONTENT):
        with pytest.raises(ModelError, match="ends after 1024 bytes"):
            file.read(offset, count)
    else:
        assert file.read(offset, count).tobytes() == CONTENT[offset : offset + count]


def test_a_part_larger_than_one_call_of_the_system_is_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "CHUNK", 100)
    assert DataFile.open(path).read(3, 1000).tobytes() == CONTENT[3:1003]


@pytest.mark.parametrize("change", ["longer", "shorter", "other bytes", "another file", "gone"])
def test_a_file_that_changes_after_it_was_opened_is_refused(path: Path, change: str) -> None:
    file = DataFile.open(path)
    if change in ("longer", "shorter"):
        os.truncate(path, len(CONTENT) + (1 if change == "longer" else -1))
    elif change == "other bytes":
        path.write_bytes(CONTENT[::-1])
        os.utime(path, ns=(0, 12345))
    else:
        path.unlink()
        if change == "another file":
            path.with_name("new").write_bytes(CONTENT)
            path.with_name("new").rename(path)
            os.utime(path, ns=(0, 12345))
    with pytest.raises(ModelError, match=r"was changed|cannot be read"):
        file.read(0, 10)


def test_a_change_while_bytes_are_read_is_noticed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = DataFile.open(path)
    read = os.preadv

    def meddle(*args: Any) -> int:
        os.utime(path, ns=(0, 12345))
        return read(*args)

    monkeypatch.setattr(os, "preadv", meddle)
    with pytest.raises(ModelError, match="was changed while it was being read"):
        file.read(0, 10)


def test_what_does_not_fit_in_memory_is_said_with_its_size(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.truncate(path, 3 << 30)  # a hole: no bytes on the disk

    def none_left(*_: Any) -> None:
        raise MemoryError

    file = DataFile.open(path)
    monkeypatch.setattr(np, "empty", none_left)
    with pytest.raises(DoesNotFitError, match=r"3\.2 GB"):
        file.read(0, 3 << 30)


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe"])
def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "odd"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(ModelError, match=r"cannot be opened: no such file|is not a file"):
        DataFile.open(path)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "Git LFS pointer"),
        (b"\n <!DOCTYPE html><html>", "HTML page"),
        (b"<HTML>", "HTML page"),
        (b"PK\x03\x04rest", "PyTorch pickle or zip archive"),
        (b"\x80\x02\x8a\nl\xfc", "Python pickle"),
        (b"GGUF\x03", "GGUF file"),
        (b'{"a": 1}', None),
    ],
)
def test_what_a_file_really_is_can_be_told(tmp_path: Path, content: bytes, what: str | None) -> None:
    path = tmp_path / "weights"
    path.write_bytes(content)
    found = DataFile.open(path).foreign()
    assert (found is None) if what is None else (found is not None and what in found)


@given(st.binary(max_size=80))
def test_any_bytes_are_an_object_or_one_sentence(data: bytes) -> None:
    try:
        assert isinstance(parse_object(data, "it"), dict)
    except ModelError as error:
        assert str(error).startswith("it is") and "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[1]", "not a JSON object"),
        (b"{", "not valid JSON"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_each_fault_of_an_object_has_its_words(text: bytes, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        parse_object(text, "it")


def test_twins_are_refused_at_any_depth_where_asked_for() -> None:
    text = b'{"a": {"b": 1, "b": 2}}'
    assert parse_object(text, "it") == {"a": {"b": 2}}
    with pytest.raises(ModelError, match="two entries named 'b'"):
        parse_object(text, "it", unique=True)


def test_a_small_file_is_read_whole_and_a_large_one_not_at_all(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_small(path) == CONTENT
    path.write_text('{"x": 1}')
    assert read_object(path) == {"x": 1}
    monkeypatch.setattr(files, "MAX_JSON", 7)
    with pytest.raises(ModelError, match="too large: 8 bytes"):
        read_small(path)
