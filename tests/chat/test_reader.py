"""Typed lines on an input of the test's: what counts as pasted, vi keys, and a history that can be emptied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from llmrs_cli.chat.attach import Typed
from llmrs_cli.chat.reader import Reader


@pytest.fixture
def keys() -> Iterator[PipeInput]:
    with create_pipe_input() as given, create_app_session(input=given, output=DummyOutput()):
        yield given


def paste(text: str) -> str:
    return f"\x1b[200~{text}\x1b[201~"


def test_what_was_pasted_is_told_apart(keys: PipeInput) -> None:
    reader = Reader(None)
    keys.send_text("see @a " + paste("and @b\r\nmore") + " @c\r")
    assert reader.read() == Typed("see @a and @b\nmore @c", ("and @b\nmore",))


def test_a_paste_that_was_deleted_is_forgotten_but_not_one_from_an_earlier_line(keys: PipeInput) -> None:
    reader = Reader(None)
    keys.send_text(paste("@b") + "\x03typed\r")
    assert reader.read() == Typed("typed", ())
    keys.send_text("@b\r")
    assert reader.read().pasted == ("@b",), "an earlier paste may come back through the history"


def test_marks_of_a_paste_are_never_text(keys: PipeInput) -> None:
    reader = Reader(None)
    keys.send_text(paste("abc\x1b[201~def") + "ghi\r")
    assert reader.read() == Typed("abcdefghi", ("abc",))
    keys.send_text(paste("abc\x03d\x04e\x00f\x1b[31m") + "\r")
    assert reader.read().text == "abc\x03d\x04e\x00f\x1b[31m", "keys in a paste are text"
    keys.send_text(paste("gone\x1b[201~\x03x") + "\r")
    assert reader.read().text == "x", "behind its end it is typed"


def test_a_long_paste_arrives_whole_and_sends_nothing(keys: PipeInput) -> None:
    reader = Reader(None)
    text = "line of a paste\n" * 400
    keys.send_text(paste(text) + "!\r")
    assert reader.read() == Typed(text + "!", (text,))


@pytest.mark.parametrize("key", ["\x07", "\x18\x05"], ids=["Ctrl-G", "Ctrl-X Ctrl-E"])
def test_a_message_can_be_written_in_an_editor(
    keys: PipeInput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    program = tmp_path / "editor"
    program.write_text("#!/bin/sh\nprintf 'one\\ntwo' > \"$1\"\n")
    program.chmod(0o700)
    monkeypatch.setenv("VISUAL", str(program))
    reader = Reader(None)
    reader._session.default_buffer.on_text_changed += lambda buffer: (
        keys.send_text("\r") if buffer.text == "one\ntwo" else None
    )
    keys.send_text("begun" + key)
    assert reader.read().text == "one\ntwo"


def test_vi_keys_edit_and_break_lines(keys: PipeInput) -> None:
    reader = Reader(None, vi=True)
    keys.send_text("abc\x1b0xiX\x1bA\x1b\rnext\r")
    assert reader.read().text == "Xbc\nnext"


def test_lines_that_go_on(keys: PipeInput) -> None:
    reader = Reader(None)
    keys.send_text('one\\\rtwo\r"""a\rb"""\rx\x1b\ry\r')
    assert [reader.read().text for _ in range(3)] == ["one\\\ntwo", '"""a\nb"""', "x\ny"]


def test_vi_keys_can_be_switched(keys: PipeInput) -> None:
    reader = Reader(None, vi=True)
    keys.send_text("ab\x1b0ix\r")
    assert reader.read().text == "xab"
    reader.use_vi(False)
    keys.send_text("ab\x01x\r")
    assert reader.read().text == "xab"


def test_the_history_outlives_a_reader_and_can_be_forgotten(keys: PipeInput, tmp_path: Path) -> None:
    path = tmp_path / "history"
    keys.send_text("one\r")
    Reader(path).read()
    reader = Reader(path)
    keys.send_text("two\r")
    reader.read()
    assert reader.typed() == ["one", "two"]
    reader.forget()
    assert (reader.typed(), path.read_bytes()) == ([], b"")
    keys.send_text("\x1b[A\x1b[Athree\r")
    assert reader.read().text == "three"
    assert reader.typed() == ["three"]


def test_without_a_place_for_it_nothing_is_kept(keys: PipeInput, tmp_path: Path) -> None:
    reader = Reader(tmp_path / "no" / "history")
    keys.send_text("one\r")
    assert reader.read().text == "one"
    assert reader.typed() == ["one"]
