"""Completion: the scripts, what is offered where, and that a shell really gets it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llmrs_cli.cli.complete import SHELLS
from llmrs_cli.cli.root import COMMANDS
from llmrs_cli.hub.aliases import ALIASES
from tests.cli.conftest import Run
from tests.helpers.fake_hub import FakeHub

ROOT = Path(__file__).parent.parent.parent
Offer = Callable[[str], list[str]]


@pytest.fixture
def offered(llmrs: Run) -> Offer:
    """What is offered at the end of a command line, as bash is told: without its "plain,"."""

    def ask(line: str) -> list[str]:
        words = line.split(" ")
        env = {"_LLMRS_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        result = llmrs(env=env)
        assert (result.exit_code, result.stderr) == (0, "")
        return [item.removeprefix("plain,") for item in result.stdout.splitlines() if item]

    return ask


def test_commands_and_options_are_offered(offered: Offer) -> None:
    assert offered("llmrs ") == list(COMMANDS)
    assert offered("llmrs ba") == ["batch"]
    assert {"--dry-run", "--yes"} <= set(offered("llmrs rm --"))
    assert offered("llmrs config ") == ["edit", "get", "list", "path", "set", "unset"]
    assert offered("llmrs alias s") == ["set"]


@pytest.mark.parametrize(
    "line",
    ["llmrs chat", "llmrs chat -m", "llmrs verify", "llmrs bench", "llmrs pull qwen3-8b", "llmrs show"]
    + ["llmrs default", "llmrs alias set mine", "llmrs batch in.jsonl -m"],
)
def test_models_are_offered_wherever_one_is_asked_for(offered: Offer, line: str) -> None:
    assert offered(f"{line} llama3.1") == ["llama3.1-8b"]


def test_models_here_and_names_of_ones_own_come_before_the_rest(
    offered: Offer, llmrs: Run, online: FakeHub
) -> None:
    llmrs("pull", "a/b")
    llmrs("alias", "set", "qmine", "a/b")
    assert offered("llmrs chat ")[:2] == ["qmine", "a/b"]
    assert offered("llmrs chat q")[0] == "qmine"
    assert set(offered("llmrs show ")) == {"qmine", "a/b", *ALIASES}


def test_what_can_be_removed_is_what_is_here(offered: Offer, llmrs: Run, online: FakeHub) -> None:
    assert offered("llmrs rm ") == []
    llmrs("pull", "a/b")
    llmrs("alias", "set", "mine", "a/b")
    assert offered("llmrs rm ") == ["a/b"]
    assert offered("llmrs alias rm ") == ["mine"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("llmrs chat --device c", ["cuda", "cpu"]),
        ("llmrs config get c", ["context", "color"]),
        ("llmrs help e", ["exit-codes", "environment"]),
        ("llmrs completion ", list(SHELLS)),
        ("llmrs chat ./mod", ["file,./mod"]),
    ],
)
def test_other_words_are_offered_too(offered: Offer, line: str, words: list[str]) -> None:
    assert offered(line) == words


def test_zsh_and_fish_are_answered_in_their_ways(llmrs: Run) -> None:
    zsh = llmrs(env={"_LLMRS_COMPLETE": "zsh_complete", "COMP_WORDS": "llmrs pu", "COMP_CWORD": "1"})
    assert zsh.stdout.splitlines()[:2] == ["plain", "pull"]
    assert "Fetch models" in zsh.stdout.splitlines()[2]
    fish = llmrs(env={"_LLMRS_COMPLETE": "fish_complete", "COMP_WORDS": "llmrs pu", "COMP_CWORD": "pu"})
    assert fish.stdout.splitlines()[0].startswith("plain,pull")


@pytest.mark.parametrize("line", ["llmrs nosuch ", "llmrs chat --nosuch x ", "llmrs nosuch --"])
def test_a_line_that_is_wrong_offers_nothing_and_says_nothing(llmrs: Run, line: str) -> None:
    words = str(len(line.split(" ")) - 1)
    result = llmrs(env={"_LLMRS_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": words})
    assert result.stderr == ""
    assert result.exit_code in (0, 1)


def test_broken_files_of_the_user_are_no_noise_at_the_prompt(llmrs: Run, environment: Path) -> None:
    folder = environment / ".config" / "llmrs"
    folder.mkdir(parents=True)
    (folder / "aliases.toml").write_text("= =")
    env = {"_LLMRS_COMPLETE": "zsh_complete", "COMP_WORDS": "llmrs chat q", "COMP_CWORD": "2"}
    result = llmrs(env=env)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "")


# -- the scripts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", SHELLS)
def test_each_script_calls_back(llmrs: Run, shell: str) -> None:
    result = llmrs("completion", shell)
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"_LLMRS_COMPLETE={shell}_complete" in result.stdout


def test_an_unknown_shell_is_refused(llmrs: Run) -> None:
    result = llmrs("completion", "tcsh")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "fish" in result.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_reads_its_script(llmrs: Run, tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(reason=f"needs {shell} to read the script: apt-get install {shell}")
    path = tmp_path / "script"
    path.write_text(llmrs("completion", shell).stdout)
    done = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


CALLS = {
    "bash": "source ./script; COMP_WORDS=(llmrs chat llama3.2); COMP_CWORD=2; _llmrs_completion llmrs; "
    'printf "%s\\n" "${COMPREPLY[@]}"',
    "fish": 'source ./script; complete -C "llmrs chat llama3.2"',
}


@pytest.mark.parametrize("shell", CALLS)
def test_a_shell_completes_a_model(llmrs: Run, tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(reason=f"needs {shell} to complete in it")
    (tmp_path / "script").write_text(llmrs("completion", shell).stdout)
    program = tmp_path / "llmrs"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m llmrs_cli "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        [shell, "-c", CALLS[shell]],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.stdout.split(), done.stderr) == (["llama3.2-1b", "llama3.2-3b"], "")
