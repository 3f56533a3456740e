"""Writing that survives: short writes go on, a file is the old one or the new one, names reach the disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.batch import durable


class Patched:
    """`os` with some calls of its own."""

    def __init__(self, **calls: Any) -> None:
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        return self._calls.get(name) or getattr(os, name)


@given(data=st.binary(max_size=50), most=st.integers(1, 7))
def test_a_system_that_takes_a_part_gets_the_rest(data: bytes, most: int) -> None:
    taken = bytearray()

    def write(file: int, piece: memoryview) -> int:
        taken.extend(piece[:most])
        return min(most, len(piece))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llmrs_cli.batch.durable.os", Patched(write=write))
        durable.write_all(3, data)
    assert bytes(taken) == data


def test_a_file_is_replaced_as_a_whole_and_synced_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_text("old")
    seen: list[tuple[str, str]] = []

    def fsync(file: int) -> None:
        seen.append(("sync", (tmp_path / "f").read_text()))

    def replace(source: Path, target: Path) -> None:
        seen.append(("replace", source.read_text()))
        source.replace(target)

    monkeypatch.setattr("llmrs_cli.batch.durable.os", Patched(fsync=fsync, replace=replace))
    durable.write_file(tmp_path / "f", b"new")
    assert seen == [("sync", "old"), ("replace", "new"), ("sync", "new")]
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_file_that_cannot_be_written_is_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    (tmp_path / "f").write_text("old")

    def fail(*args: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("llmrs_cli.batch.durable.os", Patched(**{call: fail}))
    with pytest.raises(OSError):
        durable.write_file(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_text() == "old"
    if call != "replace":
        assert [path.name for path in tmp_path.iterdir()] == ["f"], "no part is left"


def test_removing_what_is_gone_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    durable.remove(tmp_path / "f")
    durable.remove(tmp_path / "f")
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_cannot_sync_a_folder_need_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: int) -> None:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr("llmrs_cli.batch.durable.os", Patched(fsync=refuse))
    durable.sync_folder(tmp_path)
