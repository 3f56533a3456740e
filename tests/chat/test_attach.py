"""Files in a message: @path in what was typed, never in what was pasted; /file; names that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmrs_cli.chat.attach import Attachments, Typed, mentions
from llmrs_cli.errors import LlmrsError, UsageError
from tests.helpers.talk import Seen


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see @a.txt and @b", ["a.txt", "b"]),
        ("@a.txt, @a.txt!", ["a.txt"]),
        ("me@example.org", []),
        ('read @"my notes.txt" now', ["my notes.txt"]),
        ("@", []),
        ("(@a)", []),
        ("line\n@~/x", ["~/x"]),
    ],
)
def test_what_is_a_mention(text: str, found: list[str]) -> None:
    assert mentions(text) == found


def test_pasted_mentions_are_plain_text() -> None:
    assert mentions("mine: @a.txt theirs: @b.txt", pasted=("theirs: @b.txt",)) == ["a.txt"]
    assert mentions("@a.txt @a.txt", pasted=("x @a.txt",)) == []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("alpha\n")
    (tmp_path / "b.txt").write_text("beta\n")
    return tmp_path


def put(text: str, attachments: Attachments | None = None, pasted: tuple[str, ...] = ()) -> tuple[str, Seen]:
    seen = Seen()
    return (attachments or Attachments()).put_to(text, Typed(text, pasted), seen), seen


def test_a_mentioned_file_stands_behind_the_message(folder: Path) -> None:
    text, seen = put("Sum up @a.txt")
    assert text == "Sum up @a.txt\n\nalpha"
    assert "'a.txt' is added" in seen.said[0]


def test_several_files_are_told_apart_by_name(folder: Path) -> None:
    assert put("@a.txt or @b.txt?")[0] == "@a.txt or @b.txt?\n\na.txt:\n\nalpha\n\nb.txt:\n\nbeta"


def test_a_pasted_line_reads_no_file(folder: Path) -> None:
    text, seen = put("Sum up @a.txt", pasted=("@a.txt",))
    assert (text, seen.said) == ("Sum up @a.txt", [])


def test_what_is_no_file_is_sent_as_it_stands_and_a_path_is_told(folder: Path) -> None:
    text, seen = put("Ask @alice about @nowhere/x.txt")
    assert text == "Ask @alice about @nowhere/x.txt"
    assert len(seen.warnings) == 1 and "nowhere/x.txt" in seen.warnings[0]


def test_attached_files_go_with_the_next_message_only(folder: Path) -> None:
    attachments = Attachments()
    assert "6 bytes" in attachments.add("a.txt")
    assert put("Well?", attachments)[0] == "Well?\n\nalpha"
    assert put("And?", attachments)[0] == "And?"


def test_a_file_that_cannot_be_read_stops_the_message_and_forgets_nothing(folder: Path) -> None:
    (folder / "c.bin").write_bytes(b"\xff")
    attachments = Attachments()
    attachments.add("a.txt")
    with pytest.raises(UsageError, match="not UTF-8"):
        put("@c.bin", attachments)
    assert list(attachments.waiting) == ["a.txt"]
    with pytest.raises(LlmrsError, match="no file"):
        attachments.add("d.txt")
