"""Output files: what is refused before any work, and that each line is whole on disk at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmrs_cli.batch.sink import FileSink, check_output, open_input
from llmrs_cli.errors import LlmrsError, ModelError, UsageError


def test_each_line_is_on_disk_when_write_returns(tmp_path: Path) -> None:
    with FileSink(tmp_path / "out", overwrite=False) as sink:
        sink.write("é")
        assert (tmp_path / "out").read_text("utf-8") == "é\n"
        sink.write("b")
    assert (tmp_path / "out").read_text("utf-8") == "é\nb\n"


def test_an_existing_output_is_replaced_only_on_request(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("old\n")
    for refused in (lambda: check_output(out, None, overwrite=False), lambda: FileSink(out, overwrite=False)):
        with pytest.raises(UsageError) as caught:
            refused()
        assert "--overwrite" in str(caught.value)
    assert out.read_text() == "old\n"
    check_output(out, None, overwrite=True)
    with FileSink(out, overwrite=True) as sink:
        sink.write("new")
    assert out.read_text() == "new\n"


@pytest.mark.parametrize("overwrite", [False, True])
def test_the_input_is_never_the_output(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "in").write_text("x")
    (tmp_path / "link").symlink_to("in")
    for name in ("in", "link"):
        with pytest.raises(UsageError, match="same file"):
            check_output(tmp_path / name, tmp_path / "in", overwrite=overwrite)


def test_devices_are_written_without_asking(tmp_path: Path) -> None:
    check_output(Path(os.devnull), None, overwrite=False)
    with FileSink(Path(os.devnull), overwrite=False) as sink:
        sink.write("gone")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error_at_the_write() -> None:
    with FileSink(Path("/dev/full"), overwrite=False) as sink, pytest.raises(OSError):
        sink.write("x")


@pytest.mark.parametrize("name", ["folder", "missing/out"])
def test_an_output_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError):
        check_output(tmp_path / name, None, overwrite=True)


@pytest.mark.parametrize(("name", "kind"), [("missing", ModelError), ("folder", UsageError)])
def test_an_input_that_cannot_be_read_is_named(tmp_path: Path, name: str, kind: type[LlmrsError]) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(kind) as caught:
        open_input(tmp_path / name)
    assert name in caught.value.message
