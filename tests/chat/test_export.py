"""Conversations as files for others: what is in them, and that no file of the user's is overwritten."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from llmrs_cli.chat.conversation import Conversation, Turn, from_json
from llmrs_cli.chat.export import exported, format_of, write_export
from llmrs_cli.engine.types import FinishReason
from llmrs_cli.errors import LlmrsError, UsageError

TALK = Conversation(
    "S", (Turn("one", "1"), Turn("two\nlines", "2", "hm", FinishReason.ABORT, (5,))), "sum", 1
)


def test_jsonl_is_one_row_of_messages_with_every_turn() -> None:
    text = exported(TALK, "m", "jsonl")
    assert text.count("\n") == 1 and text.endswith("\n")
    messages = json.loads(text)["messages"]
    assert [message["role"] for message in messages] == [
        *("system", "user", "assistant", "user", "assistant")
    ]
    assert messages[0]["content"] == "S"
    assert messages[3]["content"] == "two\nlines"


def test_json_can_be_read_again() -> None:
    value = json.loads(exported(TALK, "m", "json"))
    assert value["model"] == "m"
    assert from_json(value) == TALK


def test_markdown_has_everything_in_order_and_marks_a_cut() -> None:
    text = exported(TALK, "m", "md")
    places = [text.index(part) for part in ("with m", "S", "one", "1", "two\nlines", "2", "*(cut here)*")]
    assert places == sorted(places)


@pytest.mark.parametrize("name", ["x", "x.txt", "x.jsonl.gz", ".md"])
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"\.md, \.json or \.jsonl"):
        format_of(name)


def test_case_of_the_ending_does_not_matter() -> None:
    assert format_of("a/b.MD") == "md"


def test_an_existing_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.md"
    path.write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        write_export(str(path), "new")
    assert path.read_text() == "mine"


def test_a_file_is_private_and_a_folder_must_exist(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_export(str(tmp_path / "x.md"), "new\ud800")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x.md").stat().st_mode) == 0o600
    assert (tmp_path / "x.md").read_text() == "new?"
    with pytest.raises(LlmrsError, match="No such file"):
        write_export(str(tmp_path / "no/x.md"), "new")
