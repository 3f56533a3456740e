"""The folder that a command makes: new, with room for it, made once, and gone when it fails."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from llmrs_cli.cli.place import filling, new_place
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.errors import LlmrsError, UsageError


@pytest.fixture
def heard() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def terminal(heard: io.StringIO) -> Terminal:
    return Terminal(io.StringIO(), heard)


def test_a_new_place_has_a_parent_and_is_not_there_yet(tmp_path: Path) -> None:
    place = new_place(str(tmp_path / "a" / "b"))
    assert (place.parent.is_dir(), place.exists()) == (True, False)


def test_an_empty_folder_is_a_new_place_too(tmp_path: Path) -> None:
    assert new_place(str(tmp_path)) == tmp_path


def test_a_name_is_taken_from_where_the_user_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert new_place("x") == tmp_path / "x"
    assert new_place("~/x") == tmp_path / "home" / "x"


def test_what_is_there_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for taken in (tmp_path / "file", tmp_path):
        with pytest.raises(UsageError, match="exists already"):
            new_place(str(taken))


def test_a_folder_is_filled_and_put_in_place(tmp_path: Path, terminal: Terminal) -> None:
    with filling(tmp_path / "x", 10, terminal) as folder:
        assert folder is not None
        (folder / "a").write_text("a")
        assert not (tmp_path / "x").exists()
    assert (tmp_path / "x" / "a").read_text() == "a"
    assert os.listdir(tmp_path) == ["x"]  # noqa: PTH208


def test_an_error_leaves_nothing_in_place(tmp_path: Path, terminal: Terminal) -> None:
    with pytest.raises(ZeroDivisionError), filling(tmp_path / "x", 10, terminal):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_more_than_the_disk_holds_is_refused_with_both_sizes(tmp_path: Path, terminal: Terminal) -> None:
    with (
        pytest.raises(LlmrsError, match=r"is full: .* needed, .* free"),
        filling(tmp_path / "x", 1 << 60, terminal),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def made(target: Path) -> Path:
    target.mkdir()
    (target / "old").write_text("old")
    return target


def test_what_is_good_is_kept(tmp_path: Path, terminal: Terminal) -> None:
    target = made(tmp_path / "x")
    with filling(target, 10, terminal, lambda folder: folder == target) as folder:
        assert folder is None
    assert (target / "old").exists()


def test_what_is_not_good_is_made_anew_and_said(
    tmp_path: Path, terminal: Terminal, heard: io.StringIO
) -> None:
    target = made(tmp_path / "x")
    with filling(target, 10, terminal, lambda folder: False) as folder:
        assert folder is not None
        (folder / "new").write_text("new")
    assert [path.name for path in target.iterdir()] == ["new"]
    assert "is damaged and made anew" in heard.getvalue()


def test_without_a_judge_what_is_there_is_refused(tmp_path: Path, terminal: Terminal) -> None:
    target = made(tmp_path / "x")
    with pytest.raises(UsageError, match="exists already"), filling(target, 10, terminal):
        pass
    assert (target / "old").exists()
