"""The root command: statuses, sentences, suggestions, and what it does not import."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import Any

import click
import pytest
from click.testing import CliRunner

from llmrs_cli.cli import root as root_module
from llmrs_cli.cli.faults import Terminated, explain, fault_id
from llmrs_cli.cli.root import COMMANDS, ELSEWHERE, root
from llmrs_cli.errors import (
    AccessError,
    ContextLengthError,
    DoesNotFitError,
    EngineFault,
    LlmrsError,
    ModelError,
    NetworkError,
    RowsFailedError,
    UsageError,
)

ENDINGS: list[tuple[BaseException, int]] = [
    (LlmrsError("It failed."), 1),
    (UsageError("Wrong."), 2),
    (ContextLengthError("Too long.", limit=8, prompt=9), 2),
    (RowsFailedError("2 of 5 rows failed."), 3),
    (AccessError("No token."), 4),
    (ModelError("No such file."), 5),
    (DoesNotFitError("Too big."), 6),
    (NetworkError("Offline."), 7),
    (EngineFault("The device failed."), 8),
    (KeyboardInterrupt(), 130),
    (click.Abort(), 130),
    (Terminated(), 143),
    (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141),
    (MemoryError(), 6),
    (OSError(errno.ENOSPC, "No space left on device"), 1),
    (OSError(errno.EACCES, "Permission denied", "x"), 1),
    (ZeroDivisionError("division by zero"), 1),
]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes `llmrs chat` raise the exception it is given."""

    def arrange(error: BaseException | type[BaseException]) -> None:
        @click.command()
        def command() -> None:
            raise error

        monkeypatch.setattr(root_module.Root, "get_command", lambda self, ctx, name: command)

    return arrange


@pytest.mark.parametrize(("error", "status"), ENDINGS, ids=lambda value: type(value).__name__)
def test_every_ending_has_its_status_and_no_traceback(
    failing: Any, error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LLMRS_DEBUG", raising=False)
    failing(error)
    result = CliRunner().invoke(root, ["chat"])
    assert result.exit_code == status
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) <= 2


def test_message_and_hint_stand_on_two_lines(failing: Any) -> None:
    failing(ModelError("There is no folder 'x'.", hint="Check the path."))
    result = CliRunner().invoke(root, ["chat"])
    assert result.stderr == "llmrs: There is no folder 'x'.\n       Check the path.\n"


def test_control_sequences_in_a_message_do_not_reach_the_terminal(failing: Any) -> None:
    failing(ModelError("bad \x1b]0;name\x07file"))
    assert CliRunner().invoke(root, ["chat"]).stderr == "llmrs: bad file\n"


@pytest.mark.parametrize("quiet_ending", [KeyboardInterrupt(), Terminated(), BrokenPipeError(32, "")])
def test_interrupts_and_closed_pipes_say_nothing(quiet_ending: BaseException) -> None:
    assert explain(quiet_ending).message is None


def test_an_unforeseen_error_has_an_id_that_repeats(failing: Any) -> None:
    failing(ZeroDivisionError)
    first, second = (CliRunner().invoke(root, ["chat"]).stderr for _ in range(2))
    assert "fault " in first
    assert first == second
    assert "ZeroDivisionError" not in first


def test_fault_ids_tell_kinds_apart() -> None:
    assert fault_id(ZeroDivisionError()) != fault_id(KeyError())


def test_debug_adds_the_traceback(failing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMRS_DEBUG", "1")
    failing(ZeroDivisionError("division by zero"))
    assert "ZeroDivisionError: division by zero" in CliRunner().invoke(root, ["chat"]).stderr


@pytest.mark.parametrize(("typed", "meant"), [("cat", "chat"), ("bacth", "batch"), ("docter", "doctor")])
def test_a_mistyped_command_names_the_nearest(typed: str, meant: str) -> None:
    result = CliRunner().invoke(root, [typed])
    assert result.exit_code == 2
    assert f"llmrs {meant}" in result.stderr


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_command_of_another_tool_is_answered_with_what_to_do_here(name: str) -> None:
    result = CliRunner().invoke(root, [name])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[1].strip() == ELSEWHERE[name]


def test_a_mistyped_option_names_the_nearest() -> None:
    result = CliRunner().invoke(root, ["chat", "--temprature", "1"])
    assert result.exit_code == 2
    assert "--temperature" in result.stderr


def test_version_and_bare_command() -> None:
    assert CliRunner().invoke(root, ["-V"]).stdout.startswith("llmrs ")
    bare = CliRunner().invoke(root, [])
    assert bare.exit_code == 0
    assert "Usage:" in bare.stdout


@pytest.mark.parametrize("name", [*COMMANDS, "run-batch"])
def test_every_command_explains_itself(name: str) -> None:
    result = CliRunner().invoke(root, [name, "--help"])
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: ")
    assert result.stdout.isascii()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_their_own_words(name: str) -> None:
    command = root.get_command(root.make_context("llmrs", ["help"]), name)
    assert command is not None
    assert COMMANDS[name] == command.get_short_help_str(limit=200)
    assert f"  {name:<10}  {COMMANDS[name]}\n" in CliRunner().invoke(root, ["--help"]).stdout


@pytest.mark.parametrize("group", [(), ("sessions",), ("alias",), ("config",)])
def test_no_explanation_in_a_list_of_commands_is_cut_short(group: tuple[str, ...]) -> None:
    listed = CliRunner().invoke(root, [*group, "--help"], terminal_width=80).stdout.partition("Commands:")[2]
    assert listed
    assert "..." not in listed


@pytest.mark.parametrize(
    "env", [{}, {"_LLMRS_COMPLETE": "bash_complete", "COMP_WORDS": "llmrs ", "COMP_CWORD": "1"}]
)
def test_listing_the_commands_imports_none_of_them(env: dict[str, str]) -> None:
    code = (
        "import sys\n"
        "from llmrs_cli.cli.root import COMMANDS, root\n"
        "try: root.main(['--help'])\n"
        "except SystemExit as end: assert not end.code\n"
        "loaded = [name for name in COMMANDS if f'llmrs_cli.cli.{name}' in sys.modules]\n"
        "sys.exit(' '.join(loaded) or 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **env}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "sessions" in done.stdout


def test_help_of_every_command_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from llmrs_cli.cli.root import COMMANDS, root\n"
        "for args in [[], *([name, '--help'] for name in COMMANDS)]:\n"
        "    try: root.main(args)\n"
        "    except SystemExit as end: assert end.code == 0, (args, end.code)\n"
        "heavy = 'numpy numba cupy tokenizers huggingface_hub jinja2 rich prompt_toolkit'.split()\n"
        "sys.exit(' '.join(name for name in heavy if name in sys.modules) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode == 0


def test_a_failed_engine_leaves_nothing_to_destructors() -> None:
    """What a failed device still holds complains when it is torn down: nobody shall see that."""
    code = (
        "import sys\n"
        "from llmrs_cli.cli import root\n"
        "from llmrs_cli.errors import EngineFault\n"
        "class Held:\n"
        "    def __del__(self):\n"
        "        raise RuntimeError('the context is lost')\n"
        "sys.held = Held()\n"
        "def invoke(ctx):\n"
        "    print('so far')\n"
        "    raise EngineFault('The engine failed in step 3.')\n"
        "root.root.invoke = invoke\n"
        "sys.argv = ['llmrs', 'list']\n"
        "root.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 8
    assert done.stdout == "so far\n"
    assert done.stderr == "llmrs: The engine failed in step 3.\n"
