"""Inputs and outputs as the file system has them: what is refused before any work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmrs_cli.batch.sink import PipeSink, check_output, is_plain, open_input
from llmrs_cli.errors import LlmrsError, ModelError, UsageError


def test_the_input_is_never_the_output(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("x")
    (tmp_path / "link").symlink_to("in")
    for name in ("in", "link"):
        with pytest.raises(UsageError, match="same file"):
            check_output(tmp_path / name, tmp_path / "in")
    with pytest.raises(UsageError, match="same file"):
        check_output(tmp_path / "new", tmp_path / "new")
    check_output(tmp_path / "new", tmp_path / "in")


def test_devices_are_written_without_asking() -> None:
    check_output(Path(os.devnull))
    assert not is_plain(Path(os.devnull))
    with PipeSink(Path(os.devnull)) as sink:
        sink.write("gone")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error_at_the_write() -> None:
    with PipeSink(Path("/dev/full")) as sink, pytest.raises(OSError):
        sink.write("x")


@pytest.mark.parametrize("name", ["folder", "missing/out"])
def test_an_output_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError):
        check_output(tmp_path / name)


@pytest.mark.parametrize(("name", "kind"), [("missing", ModelError), ("folder", UsageError)])
def test_an_input_that_cannot_be_read_is_named(tmp_path: Path, name: str, kind: type[LlmrsError]) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(kind) as caught:
        open_input(tmp_path / name)
    assert name in caught.value.message
