"""Names from a listing and files that appear whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.errors import LlmrsError, ModelError
from llmrs_cli.hub.files import (
    disk_errors,
    is_portable,
    no_clashes,
    refuse_escape,
    size_text,
    write_whole,
)


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "model-00001-of-00004.safetensors",
        "a/b.json",
        "x [1] (2).txt",
        ".gitattributes",
        "例.md",
    ],
)
def test_ordinary_names_pass(name: str) -> None:
    refuse_escape(name)
    assert is_portable(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "../x",
        "a/../x",
        "/abs",
        "//host/share",
        "..\\x",
        "a\\b",
        "\\\\host\\share",
        "C:x",
        "C:\\x",
        "a\0b",
        "a\nb",
        "a\x1b[0m",
        "a\u202eb",
        "\ud800",
    ],
)
def test_names_that_escape_or_hide_are_refused_without_echoing_them(name: str) -> None:
    with pytest.raises(ModelError, match="unsafe name") as caught:
        refuse_escape(name)
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    "name", [".", "a/", "a//b", "nul", "a/CON", "com1.txt", "dot.", "blank ", "x" * 300, "ab:c"]
)
def test_names_that_cannot_exist_everywhere_are_known(name: str) -> None:
    refuse_escape(name)
    assert not is_portable(name)


@given(st.text(max_size=30) | st.text(alphabet="ab./\\: ~-", max_size=12))
def test_a_name_that_is_accepted_stays_inside_its_folder_on_every_system(name: str) -> None:
    try:
        refuse_escape(name)
    except ModelError:
        return
    if is_portable(name):
        for kind in (PurePosixPath, PureWindowsPath):
            path = kind("base") / name
            assert not path.is_absolute() and path.drive == ""
            assert path.parts[0] == "base" and ".." not in path.parts and len(path.parts) > 1


def test_wanted_names_that_differ_from_others_in_case_only_are_refused() -> None:
    no_clashes(["a", "b", "README", "readme"], ["a", "b"])
    with pytest.raises(ModelError, match="some systems take for one file"):
        no_clashes(["config.json", "Config.json"], ["config.json"])


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (98_362_432, "98 MB"),
        (6_171_000_000, "6.2 GB"),
        (999_600, "1.0 MB"),
        (16_180_000_000, "16.2 GB"),
        (161_800_000_000, "162 GB"),
        (10**13, "10.0 TB"),
        (10**16, "10000 TB"),
    ],
)
def test_sizes_read_well(count: int, text: str) -> None:
    assert size_text(count) == text


def test_a_write_that_fails_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "ref"
    write_whole(target, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LlmrsError, match="is full"), disk_errors(tmp_path, 3):
        write_whole(target, b"new")
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["ref"]


def test_other_disk_errors_name_the_folder_and_the_reason(tmp_path: Path) -> None:
    with pytest.raises(LlmrsError, match="Cannot write to .*: Is a directory"), disk_errors(tmp_path, 1):
        raise OSError(errno.EISDIR, "Is a directory")
