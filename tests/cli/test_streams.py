"""stdout is data and nothing else, for every command there is; what else there is to say goes to stderr."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmrs_cli.cli.root import COMMANDS
from llmrs_cli.engine.backends.registry import BackendInfo
from tests.cli.conftest import MakeLadder, Run
from tests.helpers.fake_hub import FakeHub
from tests.helpers.tiny_model import TinyModel, write_tiny

LINES = {
    "chat": "chat a/b -p Hi -t 0 -v",
    "run": "run a/b Hi -t 0 -v",
    "sessions": "sessions list",
    "batch": "batch rows.jsonl -m a/b -t 0",
    "pull": "pull a/b",
    "list": "list",
    "show": "show a/b",
    "rm": "rm -n a/b",
    "prune": "prune -n",
    "du": "du",
    "alias": "alias list",
    "default": "default",
    "config": "config list",
    "quantize": "quantize tiny -o out --rtn",
    "convert": "convert awq -o converted",
    "eval": "eval book.txt a/b",
    "verify": "verify a/b --max-tokens 1",
    "bench": "bench a/b --prompt-tokens 4 --tokens 2 --repeats 1 --batch 1",
    "doctor": "doctor",
    "completion": "completion bash",
    "help": "help environment",
}
"""A line for each command that has something to say on both streams, where it can. `serve` prints no data."""


def test_every_command_is_here() -> None:
    assert set(COMMANDS) - {"serve"} <= set(LINES)


@pytest.fixture
def place(
    online: FakeHub, llmrs: Run, ladder: MakeLadder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with something for every line; notices are many, since nothing is set."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("llmrs_cli.cli.measure.READ_BYTES", 1 << 20)
    monkeypatch.setattr("llmrs_cli.engine.backends.registry.available", lambda: [BackendInfo("reference")])
    Path("rows.jsonl").write_text('{"prompt": "Hi"}\n{"prompt": "Ho"}\n')
    Path("book.txt").write_text("Hello world. " * 20)
    write_tiny(tmp_path / "tiny", TinyModel())
    write_tiny(tmp_path / "awq", TinyModel(awq=True))
    llmrs("chat", "a/b", "-p", "Hi", "-t", "0", "--session", "kept", "-q")
    return tmp_path


EXACT = {"chat": "Hello world\n", "run": "Hello world\n"}


@pytest.mark.parametrize("name", [name for name in LINES if name in COMMANDS])
def test_stdout_is_data_alone(name: str, place: Path, llmrs: Run) -> None:
    result = llmrs(*LINES[name].split())
    assert result.exit_code == 0, result.stderr
    assert result.stdout or name == "prune", "nothing is superseded here"
    assert "llmrs: " not in result.stdout and "\x1b" not in result.stdout and "\r" not in result.stdout
    assert result.stdout == EXACT.get(name, result.stdout)
    if name == "batch":
        assert [json.loads(line)["text"] for line in result.stdout.splitlines()] == ["Hello world"] * 2
    quiet = llmrs(*LINES[name].split(), "-q")
    if quiet.exit_code != 2:  # it has the option
        assert quiet.stdout == result.stdout
        assert quiet.stderr == ""
