"""A conversation in bad company: huge answers, narrow terminals, closed folders, odd locales, few open files."""

from __future__ import annotations

import os
import re
import select
import stat
import sys
from pathlib import Path

import pytest

from llmrs_cli.cli.root import root
from llmrs_cli.errors import ExitCode, ModelError
from tests.cli.conftest import MakeLadder
from tests.helpers.byte_tokenizer import piece_ids
from tests.helpers.ladder import TOP
from tests.helpers.screen import PATIENCE, ScreenSession

CTRL_C, CTRL_D, ENTER = "\x03", "\x04", "\r"
WORDS = ("alpha", "beta", "gamma", "*delta*", "`epsilon`")
PROSE = "".join(f"{word} " for word in WORDS) * 60 + "\n\n"
CODE = "```python\n" + 'print("zeta eta theta")\n' * 10 + "```\n\n"
STYLE = re.compile(rb"\x1b\[[0-9;]*m")
ROUNDS = 95
"""Of prose and code in turn: 200 kB in all."""


def says(session: ScreenSession, question: str, answer: str) -> None:
    session.press(question + ENTER)
    session.wait_for(answer)
    session.wait_for_prompt()


def test_an_answer_of_200_kb_flows_through_40_columns_and_is_written_once(
    ladder: MakeLadder, environment: Path
) -> None:
    prose, code = piece_ids([PROSE, CODE])[PROSE], piece_ids([PROSE, CODE])[CODE]
    model = ladder(PROSE, CODE, table={code: {prose: TOP}})
    size = ROUNDS * len(PROSE + CODE)
    assert size > 200_000
    options = ["-t", "0", "--max-tokens", str(2 * ROUNDS)]
    with ScreenSession(["chat", model, *options], dict(os.environ), columns=40) as session:
        session.wait_for_prompt()
        session.press("Go" + ENTER)
        answer = session.skip_to(b"was cut")
        session.wait_for_prompt()
        assert answer.count(b"zeta") == 10 * ROUNDS, "nothing is painted twice"
        assert answer.count(b"alpha") == 60 * ROUNDS
        rows = [STYLE.sub(b"", row).decode() for row in answer[answer.index(b"alpha") :].splitlines()]
        told = [row.split() for row in rows if row.startswith(("alpha", "beta", "gamma", "delta", "epsilon"))]
        assert len(told) > 1000
        assert max(map(len, rows)) <= 40
        assert {word for row in told for word in row} <= {word.strip("*`") for word in WORDS}, "whole words"
        says(session, "/undo", "1 exchange forgotten")
        session.press(CTRL_D)
        assert session.end() == 0


def test_a_window_that_shrinks_during_an_answer_holds_for_the_rest_of_it(
    ladder: MakeLadder, environment: Path
) -> None:
    line = "alpha beta gamma delta epsilon alpha beta gamma delta epsilon alpha beta\n\n"
    piece = piece_ids([line])[line]
    model = ladder(line, table={piece: {piece: TOP}})
    with ScreenSession(["chat", model, "-t", "0"], dict(os.environ)) as session:
        session.wait_for_prompt()
        session.press("Go" + ENTER)
        session.wait_for("epsilon alpha beta\n\nalpha")
        session.resize(40, 24)
        session.wait(lambda: re.search(r"^alpha beta gamma delta epsilon alpha$", session.text, re.M) is not None,
                     "line of 40 columns")  # fmt: skip
        session.press(CTRL_C)
        session.wait_for("[stopped")
        session.wait_for_prompt()
        session.press(CTRL_D)
        assert session.end() == 0


@pytest.fixture
def hello(ladder: MakeLadder) -> str:
    """A model that says é and Hello."""
    return ladder("é", "Hello", "<|im_end|>")


def test_a_state_folder_that_takes_nothing_is_said_and_the_talk_goes_on(
    hello: str, environment: Path
) -> None:
    env = {**os.environ, "LLMRS_STATE_DIR": "/dev/null/state"}
    with ScreenSession(["chat", hello, "-t", "0"], env) as session:
        session.wait_for("Typed lines")
        session.wait_for_prompt()
        says(session, "Hi", "tries again")
        assert "éHello" in session.text
        session.press("/save" + ENTER)
        session.wait(lambda: session.text.count("Cannot create the folder") == 3, "third refusal")
        session.wait_for_prompt()
        assert "saved as" not in session.text
        says(session, "Hi", "context 54 of")
        session.press(CTRL_D)
        assert session.end() == 0
    assert b"Traceback" not in session.raw


def test_without_a_home_it_is_one_sentence(hello: str, environment: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("XDG", "LLMRS"))}
    with ScreenSession(["chat", hello], {**env, "HOME": "relative"}) as session:
        assert session.end() == 2
    assert "There is no home directory" in session.text


@pytest.mark.parametrize("locale", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_few_open_files_an_ascii_locale_and_an_open_mask_change_nothing(
    hello: str, environment: Path, locale: dict[str, str]
) -> None:
    before = os.umask(0)
    try:
        session = ScreenSession(["chat", hello, "-t", "0"], {**os.environ, **locale}, open_files=64)
    finally:
        os.umask(before)
    with session:
        session.wait_for_prompt()
        says(session, "é?", "context 25 of")
        assert "> é?" in session.text and "éHello" in session.text
        session.press(CTRL_D)
        assert session.end() == 0
    state = environment / ".local/state/llmrs"
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (state, *state.rglob("*"))}
    assert set(modes.values()) == {0o600, 0o700}
    assert all((mode == 0o700) == path.is_dir() for path, mode in modes.items())
    (saved,) = (state / "sessions").iterdir()
    assert "é?" in saved.read_text("utf-8")


def test_a_line_that_is_typed_while_the_model_loads_waits_unseen_with_its_enter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    master, slave = os.openpty()

    def load(*_: object) -> None:
        os.write(master, b"Hi\r\n")  # Enter, and what tells here that all of it has arrived
        assert select.select([slave], [], [], PATIENCE)[0]
        raise ModelError("It is none.")

    monkeypatch.setattr("llmrs_cli.cli.talking.choose", load)
    with open(slave, closefd=False) as stdin, open(slave, "w", closefd=False) as out:
        for name, stream in (("stdin", stdin), ("stdout", out), ("stderr", out)):
            monkeypatch.setattr(sys, name, stream)
        with pytest.raises(SystemExit) as ended:
            root(["chat", "x"])
        monkeypatch.undo()
    assert ended.value.code == ExitCode.MODEL
    shown = os.read(master, 1000)
    assert b"It is none." in shown
    assert b"Hi" not in shown
    assert os.read(slave, 100) == b"Hi\r\n"
    os.close(slave)
    os.close(master)
