"""What Tab offers."""

from __future__ import annotations

from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from llmrs_cli.chat.commands import COMMANDS
from llmrs_cli.chat.complete import TalkCompleter


def offered(line: str) -> list[str]:
    """Whole lines, as they would stand after each completion."""
    completer = TalkCompleter(lambda: ["smollm2-135m", "qwen2.5-3b"], lambda: ["monday", "friday"])
    found = completer.get_completions(Document(line), CompleteEvent(completion_requested=True))
    return [line[: len(line) + entry.start_position] + entry.text for entry in found]


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ("/co", ["/continue", "/context", "/compact", "/copy"]),
        ("/model s", ["/model smollm2-135m"]),
        ("/load q", ["/load qwen2.5-3b"]),
        ("/load-session m", ["/load-session monday"]),
        ("/think ", ["/think on", "/think off"]),
        ("/show t", ["/show template"]),
        ("/set top_", ["/set top_k", "/set top_p"]),
        ("/help und", ["/help undo"]),
        ("/set seed 3", []),
        ("/bye x", []),
        ("hello /co", []),
        ("//co", []),
        ("", []),
    ],
)
def test_words(line: str, lines: list[str]) -> None:
    assert offered(line) == lines


def test_every_command_is_offered() -> None:
    assert offered("/") == [entry.name for entry in COMMANDS]


def test_files_behind_an_at_and_behind_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("")
    assert offered("see @no") == ["see @notes.txt"]
    assert offered("/file no") == ["/file notes.txt"]
    assert offered("/file a.txt no") == ["/file a.txt notes.txt"]
    assert offered("mail me@no") == []
