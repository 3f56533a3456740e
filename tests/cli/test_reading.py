"""How the input line of a conversation is set up: keys by flag or setting, and what of it is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from llmrs_cli.chat.attach import Typed
from tests.cli.conftest import MakeLadder, Run


class Line:
    """An input line that ends at once and remembers what it was made with."""

    made: list[tuple[Path | None, bool]] = []

    def __init__(self, history: Path | None, *, vi: bool, colour: bool) -> None:
        self.made.append((history, vi))

    def read(self) -> Typed:
        raise EOFError

    def dress(self, *_: Any) -> None:
        """Nothing is shown."""


@pytest.fixture
def talk(llmrs: Run, ladder: MakeLadder, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A conversation with options; the history file and keys that its line got."""
    monkeypatch.setattr("llmrs_cli.chat.reader.Reader", Line)
    monkeypatch.setattr("llmrs_cli.cli.talking._is_interactive", lambda terminal: True)

    def run(*options: str) -> tuple[Path | None, bool]:
        result: Result = llmrs("chat", ladder(), *options)
        assert result.exit_code == 0, result.stderr
        return Line.made[-1]

    return run


def test_keys_are_those_of_the_flag_else_of_the_setting(llmrs: Run, talk: Any) -> None:
    assert talk()[1] is False
    assert talk("--vi")[1] is True
    llmrs("config", "set", "keys", "vi")
    assert talk()[1] is True
    assert talk("--emacs")[1] is False


def test_typed_lines_are_kept_unless_nothing_is_to_be_saved(talk: Any, environment: Path) -> None:
    assert talk()[0] == environment / ".local/state/llmrs/history"
    assert talk("--no-save")[0] is None


def test_a_state_folder_that_cannot_be_made_is_said_and_no_obstacle(
    llmrs: Run, talk: Any, ladder: MakeLadder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMRS_STATE_DIR", "/dev/null/state")
    assert talk()[0] is None
    assert "Typed lines are not kept." in llmrs("chat", ladder()).stderr
