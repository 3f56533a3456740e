"""`llmrs sessions`: what is saved can be listed, shown, exported, given to batch, and removed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from llmrs_cli.errors import ExitCode
from tests.cli.conftest import MakeLadder, Run


@pytest.fixture
def talked(llmrs: Run, ladder: MakeLadder) -> str:
    """Two saved sessions; returns the model."""
    model = ladder()
    llmrs("chat", model, "-p", "How are\nyou?", "-t", "0", "--session", "first", "-s", "S")
    llmrs("chat", model, "-p", "\x1b[31mred", "-t", "0", "--session", "second")
    return model


def test_the_list_is_for_people_and_for_programs(llmrs: Run, talked: str) -> None:
    lines = llmrs("sessions", "list").stdout.splitlines()
    assert lines[0].split()[:2] == ["NAME", "CHANGED"]
    assert [line.split()[0] for line in lines[1:]] == ["first", "second"]
    assert lines[1].endswith("How are you?") and "\x1b" not in lines[2]
    entries = json.loads(llmrs("sessions", "list", "--json").stdout)
    assert [(entry["name"], entry["turns"], entry["model"]) for entry in entries] == [
        *(("first", 1, talked), ("second", 1, talked))
    ]
    assert llmrs("sessions").stdout.splitlines() == lines


def test_no_session_yet(llmrs: Run) -> None:
    result = llmrs("sessions")
    assert (result.exit_code, result.stdout) == (0, "")
    assert llmrs("sessions", "list", "--json").stdout == "[]\n"


def test_a_session_is_shown_as_markdown_or_json(llmrs: Run, talked: str) -> None:
    shown = llmrs("sessions", "show", "first")
    assert "## Question\n\nHow are\nyou?\n\n## Answer\n\nHello world\n" in shown.stdout
    assert json.loads(llmrs("sessions", "show", "first", "--json").stdout)["system"] == "S"


def test_an_export_is_a_row_that_batch_reads(llmrs: Run, talked: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    assert llmrs("sessions", "export", "first", str(path)).exit_code == 0
    answered = llmrs("batch", str(path), "-o", "-", "-m", talked, "-t", "0", "-q")
    assert (answered.exit_code, json.loads(answered.stdout)["text"]) == (0, "Hello world")
    again = llmrs("sessions", "export", "first", str(path))
    assert again.exit_code == ExitCode.USAGE
    assert "exists already" in again.stderr


def test_removing(llmrs: Run, talked: str) -> None:
    assert llmrs("sessions", "rm", "first", "second").exit_code == 0
    assert llmrs("sessions").stdout == ""
    gone = llmrs("sessions", "rm", "first")
    assert gone.exit_code == ExitCode.MODEL
    assert "no session 'first'" in gone.stderr


@pytest.mark.parametrize("args", [("show", "none"), ("export", "none", "x.md")])
def test_a_session_that_is_not_there(llmrs: Run, args: tuple[str, ...]) -> None:
    assert llmrs("sessions", *args).exit_code == ExitCode.MODEL


def test_a_damaged_one_is_named(llmrs: Run, talked: str, environment: Path) -> None:
    (environment / ".local/state/llmrs/sessions/first.json").write_text("{}")
    assert "damaged" in llmrs("sessions", "show", "first").stderr
    assert "second" in llmrs("sessions").stdout


def test_a_person_hears_that_a_session_is_new_and_which_one_is_like_it(
    llmrs: Run, ladder: MakeLadder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ("chat", ladder(), "-p", "Hi", "-t", "0", "--session")
    assert "New session" not in llmrs(*run, "piped").stderr, "a program is told nothing"
    monkeypatch.setattr("llmrs_cli.cli.terminal._is_terminal", lambda stream: stream is sys.stderr)
    assert "llmrs: New session work.\n" in llmrs(*run, "work").stderr
    assert "New session" not in llmrs(*run, "work").stderr
    assert "llmrs: New session wrok. Did you mean work?\n" in llmrs(*run, "wrok").stderr
    for flag in ("--no-save", "-q"):
        assert "New session" not in llmrs(*run, "other", flag).stderr
