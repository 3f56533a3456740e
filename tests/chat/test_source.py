"""What is asked in one shot: how parts are joined, and what is refused before any model is opened."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import pytest

from llmrs_cli.chat import source
from llmrs_cli.chat.source import compose, is_piped, read_file, read_stdin
from llmrs_cli.errors import ModelError, UsageError


@pytest.mark.parametrize(
    ("prompt", "attachments", "text"),
    [
        ("Sum up.", ["one\n", "two\n"], "Sum up.\n\none\n\ntwo"),
        ("Sum up.", [], "Sum up."),
        (None, ["one\n"], "one"),
        ("Sum up.", ["", "\n"], "Sum up."),
        (None, [], ""),
        (None, ["  indented\n"], "  indented"),
    ],
)
def test_the_prompt_comes_first_and_a_blank_line_between(
    prompt: str | None, attachments: list[str], text: str
) -> None:
    assert compose(prompt, attachments) == text


def test_files_are_utf8_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffé\r\nx".encode())
    assert read_file(str(tmp_path / "a.txt")) == "é\r\nx"


@pytest.mark.parametrize(
    ("make", "kind", "part"),
    [
        (lambda path: None, ModelError, "no file"),
        (lambda path: path.mkdir(), UsageError, "folder"),
        (lambda path: path.write_bytes(b"ab\xff\xfe"), UsageError, "byte 3 is 0xFF"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, make: object, kind: type[Exception], part: str) -> None:
    assert callable(make)
    make(tmp_path / "x")
    with pytest.raises(kind) as caught:
        read_file(str(tmp_path / "x"))
    assert part in str(caught.value)


def test_a_file_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_BYTES", 1 << 20)
    with pytest.raises(UsageError, match="larger than 1 MiB"):
        read_file("/dev/zero")


def test_what_counts_as_piped(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    read_end, write_end = os.pipe()
    os.close(write_end)
    with Path("/dev/null").open() as null, (tmp_path / "x").open() as file, os.fdopen(read_end) as pipe:
        assert [is_piped(stream) for stream in (null, file, pipe, None)] == [False, True, True, False]


def test_reading_says_nothing_while_input_is_there() -> None:
    said: list[str] = []
    stream = io.TextIOWrapper(io.BytesIO(b"abc"))
    assert read_stdin(stream, lambda: said.append("waiting")) == "abc"
    assert read_stdin(None, lambda: said.append("waiting")) == ""
    assert said == []


def test_reading_says_so_while_nothing_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "PATIENCE", 0.01)
    said = threading.Event()
    read_end, write_end = os.pipe()

    def write_late() -> None:
        said.wait(20)
        os.write(write_end, b"late")
        os.close(write_end)

    writer = threading.Thread(target=write_late)
    writer.start()
    with os.fdopen(read_end) as pipe:
        assert read_stdin(pipe, said.set) == "late"
    writer.join()
    assert said.is_set()


def test_bad_bytes_on_stdin_are_refused() -> None:
    with pytest.raises(UsageError, match="stdin is not UTF-8"):
        read_stdin(io.TextIOWrapper(io.BytesIO(b"a\xff\xfe")), lambda: None)
