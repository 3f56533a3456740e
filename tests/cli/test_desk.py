"""What a conversation gets from outside: another model, an editor, a clipboard."""

from __future__ import annotations

import base64
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrs_cli.cli.desk import OSC_LIMIT, TerminalDesk
from llmrs_cli.cli.options import ModelOptions
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.errors import EngineFault, LlmrsError, ModelError, UsageError
from llmrs_cli.text.generate import TextEngine
from tests.cli.conftest import MakeLadder
from tests.helpers.fake_hub import FakeHub


class Screen(io.TextIOWrapper):
    """A stream that is a terminal, kept in memory."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), "utf-8", write_through=True)

    def isatty(self) -> bool:
        return True

    @property
    def written(self) -> bytes:
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue()


@pytest.fixture
def screen() -> Screen:
    return Screen()


@pytest.fixture
def desk(screen: Screen) -> TerminalDesk:
    options = ModelOptions(None, "reference", 64, 1, offline=False, revision=None)
    return TerminalDesk(options, Terminal(None, screen))


@pytest.fixture
def old(ladder: MakeLadder) -> Iterator[TextEngine]:
    """The model that answers before another one is asked for."""
    with TextEngine.open(Path(ladder()), device="reference", context=64, rows=1) as engine:
        yield engine


# -- another model ------------------------------------------------------------------------------------


def test_another_model_comes_and_the_old_one_goes(
    desk: TerminalDesk, old: TextEngine, online: FakeHub
) -> None:
    with desk.open_model("a/b", old) as new:
        assert (new, desk.options.model, desk.commit) == (desk.opened, "a/b", online.repos["a/b"].commit)
        assert new.context == 64, "what was asked for the first model holds for the second"
    assert old.fault is not None, "two models need not fit at once"


def test_what_is_no_model_leaves_the_old_one_at_work(
    desk: TerminalDesk, old: TextEngine, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("no-such-model", str(tmp_path / "nowhere"), str(tmp_path / "empty")):
        with pytest.raises(ModelError):
            desk.open_model(name, old)
    assert old.fault is None
    assert (desk.opened, desk.options.model) == (None, None)


def test_a_model_that_fails_while_it_loads_is_a_fault_that_names_the_way_back(
    desk: TerminalDesk, old: TextEngine, ladder: MakeLadder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> TextEngine:
        raise ModelError("A tensor is missing.")

    monkeypatch.setattr("llmrs_cli.cli.desk.open_engine", broken)
    with pytest.raises(EngineFault, match="A tensor is missing. The former model is gone") as caught:
        desk.open_model(ladder(), old)
    assert "llmrs chat -c" in str(caught.value)


def test_models_here_are_offered(desk: TerminalDesk, online: FakeHub, old: TextEngine) -> None:
    assert desk.models() == []
    desk.open_model("a/b", old).close()
    assert desk.models() == ["a/b"]


# -- the clipboard ------------------------------------------------------------------------------------


@pytest.fixture
def no_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WAYLAND_DISPLAY", "DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_windows")
def test_without_windows_the_terminal_takes_the_text(desk: TerminalDesk, screen: Screen) -> None:
    assert desk.copy("é\x1b]0;x\x07") == "Given to the terminal's clipboard: 7 characters."
    start, encoded, rest = screen.written.partition(b"\x1b]52;c;")[1:] + (b"",)
    assert start == b"\x1b]52;c;" and not rest
    assert base64.b64decode(encoded.removesuffix(b"\x07")).decode() == "é\x1b]0;x\x07"
    with pytest.raises(UsageError, match="too long"):
        desk.copy("x" * (OSC_LIMIT + 1))


def tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)


@pytest.mark.usefixtures("no_windows")
@pytest.mark.parametrize(("variable", "program"), [("WAYLAND_DISPLAY", "wl-copy"), ("DISPLAY", "xclip")])
def test_a_window_system_has_a_clipboard_except_over_ssh(
    desk: TerminalDesk,
    screen: Screen,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    program: str,
) -> None:
    tool(tmp_path, program, f"cat > {tmp_path}/taken")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv(variable, ":0")
    assert desk.copy("é") == "In the clipboard: 1 character."
    assert (tmp_path / "taken").read_text() == "é"
    tool(tmp_path, program, "exit 1")
    with pytest.raises(LlmrsError, match=f"{program} could not"):
        desk.copy("x")
    monkeypatch.setenv("SSH_CONNECTION", "elsewhere")
    assert "terminal's clipboard" in desk.copy("x")


# -- the editor ---------------------------------------------------------------------------------------


def test_the_editor_gets_the_text_in_a_private_file_that_goes_again(
    desk: TerminalDesk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    tool(tmp_path, "editor", f'stat -c %a "$1" > {tmp_path}/mode; echo more >> "$1"')
    monkeypatch.setenv("VISUAL", str(tmp_path / "editor"))
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    before = os.umask(0)
    try:
        assert desk.edit("text\n") in ("text\nmore\n", "textmore\n")
    finally:
        os.umask(before)
    assert int((tmp_path / "mode").read_text(), 8) == stat.S_IRUSR | stat.S_IWUSR
    assert not list(shared.iterdir())


def test_an_editor_that_fails_is_one_sentence(desk: TerminalDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "/nowhere/editor")
    with pytest.raises(LlmrsError, match="The editor failed"):
        desk.edit("text")
