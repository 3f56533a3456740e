"""A token goes to the Hub and nowhere else: not to a screen, a file of ours, a traceback or a list of processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmrs_cli.cli.faults import debug_lines
from llmrs_cli.cli.root import COMMANDS, root
from tests.cli.conftest import Run
from tests.helpers.fake_hub import FakeHub, Fault

TOKEN = "hf_planted0secret1value2"
REFUSALS = {
    "all is well": Fault(),
    "an unknown token": Fault(status=401, headers={"X-Error-Message": f"Invalid credentials {TOKEN}"}),
    "a gate": Fault(status=403, headers={"X-Error-Code": "GatedRepo", "X-Error-Message": TOKEN}),
    "no such repository": Fault(status=404, headers={"X-Error-Code": "RepoNotFound"}),
    "too many requests": Fault(status=429, body=TOKEN.encode()),
    "a broken server": Fault(status=500, body=TOKEN.encode()),
    "a page": Fault(body=f"<html>{TOKEN}</html>".encode()),
    "a redirect": Fault(status=302, headers={"Location": f"http://127.0.0.1:9/?token={TOKEN}"}),
}


@pytest.mark.parametrize("debug", ["0", "1"])
@pytest.mark.parametrize("fault", REFUSALS)
def test_the_token_is_in_no_output_and_no_file(
    llmrs: Run,
    online: FakeHub,
    environment: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    debug: str,
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("LLMRS_DEBUG", debug)
    online.tokens = frozenset({TOKEN})
    online.fail("/api/|/resolve/", *[REFUSALS[fault]] * 20)
    result = llmrs("pull", "a/b")
    assert (result.exit_code == 0) == (fault == "all is well"), result.stderr
    assert any(seen.authorization == f"Bearer {TOKEN}" for seen in online.seen), "the Hub was asked with it"
    assert TOKEN not in result.stdout + result.stderr
    files = [path for folder in (environment, tmp_path) for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]


def test_no_command_takes_a_secret_as_an_argument() -> None:
    """Whoever lists the processes of a machine sees their arguments."""
    context = root.make_context("llmrs", ["help"])
    for name in COMMANDS:
        command = root.get_command(context, name)
        assert command is not None
        options = {option for parameter in command.params for option in parameter.opts}
        named = {option for option in options if option.endswith(("-key", "-token", "-password", "-secret"))}
        assert not named, name


def test_a_token_that_another_program_keeps_is_no_part_of_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    env = {"HOME": "/nowhere", "HF_TOKEN_PATH": str(tmp_path / "token"), "LLMRS_API_KEY": "key0planted"}
    lines = debug_lines(ValueError(f"{TOKEN} and key0planted\x1b[2J"), env)
    assert lines[-1] == "ValueError: *** and ***\x1b[2J"
    assert debug_lines(ValueError("x"), {"HOME": "relative"})[-1] == "ValueError: x"


def test_a_traceback_cannot_touch_the_terminal(monkeypatch: pytest.MonkeyPatch, llmrs: Run) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a\x1b]0;gone\x07b")

    monkeypatch.setenv("LLMRS_DEBUG", "1")
    monkeypatch.setattr("llmrs_cli.hub.shelf.kept_models", fail)
    assert "ValueError: ab\n" in llmrs("list").stderr
