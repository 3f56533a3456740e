"""The conversation on a real pseudo-terminal: keys, pastes, Ctrl-C, Ctrl-D, a narrow window."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import MakeLadder
from tests.helpers.byte_tokenizer import piece_ids
from tests.helpers.ladder import TOP
from tests.helpers.screen import ScreenSession

ABC, DE = piece_ids()["abc"], piece_ids()["de"]
CTRL_C, CTRL_D, ENTER, ALT_ENTER, LEFT = "\x03", "\x04", "\r", "\x1b\r", "\x1b[D"


def paste(text: str) -> str:
    """A bracketed paste, as a terminal sends it: line feeds become carriage returns."""
    return f"\x1b[200~{text}\x1b[201~".replace("\n", "\r")


@pytest.fixture
def session(ladder: MakeLadder, environment: Path) -> Iterator[ScreenSession]:
    """A conversation with a model that says "abcdeabcde…" for ever."""
    endless = ladder("abc", "de", table={DE: {ABC: TOP}})
    with ScreenSession(["chat", endless, "-t", "0", "-s", "S"], dict(os.environ)) as opened:
        opened.wait_for_prompt()
        yield opened


def test_a_session_from_paste_to_leaving(session: ScreenSession, environment: Path) -> None:
    session.press(paste("line 1\nline 2"))
    session.wait_for("line 2")
    assert "200~" not in session.text
    assert "abc" not in session.text, "a paste sends nothing by itself"

    session.press(ENTER)
    session.wait_for("abcdeabcde")
    session.press(CTRL_C)
    session.wait_for("[stopped")
    session.wait_for("tok/s")
    session.wait_for_prompt()

    session.press("/bey" + ENTER)
    session.wait_for("Did you mean /bye?")
    session.wait_for_prompt()

    session.press("half a line" + CTRL_C)
    session.wait_for_prompt()

    session.resize(40, 24)
    session.press("ab" + LEFT + CTRL_D + ALT_ENTER + "cd")
    session.wait_for("cd")
    session.press(CTRL_C)
    session.wait_for_prompt()
    session.press(CTRL_D)
    assert session.end() == 0
    assert b"Traceback" not in session.raw

    history = environment / ".local/state/llmrs/history"
    assert "line 1\n+line 2" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert stat.S_IMODE(history.parent.stat().st_mode) == 0o700


def test_ctrl_c_twice_on_an_empty_line_leaves_with_130(session: ScreenSession) -> None:
    session.press(CTRL_C + CTRL_C)
    assert session.end() == 130
    assert "Ctrl-C again leaves" in session.text
    assert b"Traceback" not in session.raw


def test_a_stopped_answer_is_saved_and_goes_on_in_another_process(
    session: ScreenSession, environment: Path
) -> None:
    session.press("say@it @nothing" + ENTER)
    session.wait_for("abcdeabcde")
    session.press(CTRL_C)
    session.wait_for("[stopped")
    session.wait_for_prompt()
    session.press(CTRL_D)
    assert session.end() == 0
    (saved,) = (environment / ".local/state/llmrs/sessions").iterdir()
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    before = json.loads(saved.read_text())["turns"][0]

    model = json.loads(saved.read_text())["model"]
    with ScreenSession(["chat", model, "-t", "0", "-c"], dict(os.environ), columns=40) as later:
        later.wait_for_prompt()
        later.press("/continue" + ENTER)
        later.wait(lambda: later.text.count("abcde") > 30, "more of the answer")
        later.press(CTRL_C)
        later.wait_for("[stopped")
        later.wait_for_prompt()
        later.press(CTRL_D)
        assert later.end() == 0
    (turn,) = json.loads(saved.read_text())["turns"]
    assert turn["ids"][: len(before["ids"])] == before["ids"]
    assert len(turn["ids"]) > len(before["ids"])
    assert turn["answer"] == ("abcde" * len(turn["answer"]))[: len(turn["answer"])]
    assert b"Traceback" not in later.raw


def test_a_line_typed_during_an_answer_is_the_next_question(ladder: MakeLadder, environment: Path) -> None:
    model = ladder("abc", "de", table={DE: {ABC: TOP}})
    args = ["chat", model, "-t", "0", "--max-tokens", "200"]
    with ScreenSession(args, dict(os.environ), lines=50) as session:
        session.wait_for_prompt()
        session.press("one" + ENTER)
        session.wait_for("abcde")
        session.press("two" + ENTER)
        session.wait(
            lambda: "> two" in session.text and session.text.count("token limit") == 2, "two answers"
        )
        session.wait_for_prompt()
        session.press(CTRL_D)
        assert session.end() == 0


def test_control_sequences_of_a_model_do_not_reach_the_terminal(
    ladder: MakeLadder, environment: Path
) -> None:
    nasty = ladder(
        "abc", "\x1b]0;owned\x07", "\x1b[2J\x1b[1;1H", "\x9b31m", "\r", "de", "\u202e", "<|im_end|>"
    )
    with ScreenSession(["chat", nasty, "-p", "Hi", "-t", "0"], dict(os.environ)) as opened:
        assert opened.end() == 0
    answer = next(line for line in opened.text.splitlines() if "abc" in line)
    assert answer == "abcde<U+202E>"
    assert b"owned" not in opened.raw
    assert b"\x1b[2J" not in opened.raw
