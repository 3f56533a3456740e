"""Promises of every command that prints data: what it imports, where things go, and pipes that close."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmrs_cli.cli.root import COMMANDS, root
from tests.cli.conftest import Run
from tests.helpers.fake_hub import FakeHub
from tests.helpers.screen import ScreenSession

COMPLETING = {"_LLMRS_COMPLETE": "bash_complete", "COMP_WORDS": "llmrs chat q", "COMP_CWORD": "2"}
LOADED = (
    "import sys\n"
    "before = set(sys.modules)\n"
    "from llmrs_cli.cli.root import root\n"
    "try: root.main(sys.argv[1:])\n"
    "except SystemExit as end: assert not end.code, end.code\n"
    "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
    "print(*sorted(new - set(sys.stdlib_module_names)), file=sys.stderr)\n"
)


@pytest.mark.parametrize(
    ("args", "env"),
    [
        (["--help"], {}),
        (["list"], {}),
        (["list", "--json"], {}),
        ([], COMPLETING),
        (["alias", "list"], {}),
        (["config", "list"], {}),
        (["default"], {}),
        (["du"], {}),
        (["prune", "-n"], {}),
        (["completion", "bash"], {}),
    ],
    ids=lambda value: " ".join(value),
)
def test_quick_commands_load_click_and_nothing_else(
    args: list[str], env: dict[str, str], online: FakeHub, llmrs: Run
) -> None:
    llmrs("pull", "a/b", "-q")
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *args],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.splitlines()[-1].split() == ["click", "llmrs_cli"]


QUICK = ["list", "du", "alias", "config", "default", "completion bash", "help", "help environment"]
DATA = [*QUICK, "show a/b", "pull a/b", "pull -n a/b", "rm -n a/b", "prune -n"]
DATA += ["verify a/b --max-tokens 1", "sessions list"]


@pytest.mark.parametrize("line", DATA)
def test_a_reader_that_goes_away_ends_the_command_quietly(line: str, llmrs: Run, online: FakeHub) -> None:
    llmrs("chat", "a/b", "-p", "Hi", "--session", "kept", "-q")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "llmrs_cli", *line.split()],
            stdin=subprocess.DEVNULL,
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=110,
        )
    if line == "prune -n":  # has nothing to print
        assert done.returncode == 0
        return
    assert done.returncode == 141, done.stderr
    assert "Exception" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_sentence() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "llmrs_cli", "alias"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr.startswith("llmrs: No space is left")


def test_control_sequences_in_settings_reach_a_pipe_but_no_terminal(environment: Path) -> None:
    folder = environment / ".config" / "llmrs"
    folder.mkdir(parents=True)
    (folder / "settings.toml").write_text('device = "a\\u001b]0;gone\\u0007b"\n')
    env = {name: value for name, value in os.environ.items() if name != "LLMRS_DEVICE"}
    command = [sys.executable, "-m", "llmrs_cli", "config", "get", "device"]
    assert subprocess.run(command, env=env, capture_output=True).stdout == b"a\x1b]0;gone\x07b\n"
    with ScreenSession(["config", "get", "device"], env) as session:
        assert session.end() == 0
    assert session.raw == b"ab\r\n"


JSON = ["list", "du", "alias list", "config list", "config get color", "default", "show a/b"]
JSON += ["pull a/b", "pull -n a/b", "rm -n a/b", "rm -y a/b", "prune -n", "prune -y"]


@pytest.mark.parametrize("line", JSON)
def test_stdout_holds_one_json_value_and_nothing_else(line: str, llmrs: Run, online: FakeHub) -> None:
    llmrs("pull", "a/b", "-q")
    result = llmrs(*line.split(), "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("\n") == 1
    assert json.loads(result.stdout) is not None
    assert result.stdout.isascii()


@pytest.mark.parametrize("line", ["list", "du", "alias list", "config list", "show a/b", "prune -n"])
def test_nothing_is_written_where_nothing_was_asked_to_be(
    line: str, llmrs: Run, online: FakeHub, environment: Path, tmp_path: Path
) -> None:
    before = sorted([*environment.rglob("*"), *tmp_path.rglob("*")])
    llmrs(*line.split())
    assert sorted([*environment.rglob("*"), *tmp_path.rglob("*")]) == before


@pytest.mark.parametrize("line", ["rm", "show", "pull", "completion", "config get", "alias set x"])
def test_what_is_missing_is_named(line: str, llmrs: Run) -> None:
    result = llmrs(*line.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("llmrs: Missing argument")


def test_every_data_command_has_json() -> None:
    context = root.make_context("llmrs", ["help"])
    for name in set(COMMANDS) & {"list", "show", "pull", "rm", "prune", "du", "default", "doctor"}:
        command = root.get_command(context, name)
        assert command is not None
        assert "--json" in {option for parameter in command.params for option in parameter.opts}, name
