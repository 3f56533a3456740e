"""The command `llmrs`: finds a command when it is asked for, and ends every run with the right status.

Nothing but Click and the standard library is imported until a command is chosen. This is the one place
where an exception becomes text and an exit status (`cli.faults` says which).
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from llmrs_cli import __version__
from llmrs_cli.cli.control import clean
from llmrs_cli.cli.faults import DEBUG_VARIABLE, Fault, Terminated, debug_lines, explain
from llmrs_cli.errors import ExitCode, UsageError, quoted

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS: Mapping[str, str] = {
    "chat": "Talk to a model, or ask it one question.",
    "run": "Run a model: answer PROMPT, or talk if there is none.",
    "sessions": "List, show, export and remove saved conversations.",
    "batch": "Answer every row of a file.",
    "serve": "Serve a model over HTTP with OpenAI's API.",
    "pull": "Fetch models from the Hub, and print where they are.",
    "list": "List the models on this machine.",
    "show": "Show what a model is and whether it fits here.",
    "rm": "Remove models from this machine.",
    "prune": "Remove unfinished downloads, superseded commits, stray copies.",
    "du": "Show how much of the disk models and caches take.",
    "alias": "List, give and forget short names of models.",
    "default": "Show or set the model to use where none is named.",
    "config": "Show and change settings.",
    "quantize": "Quantise a 16-bit model to 4 bits, in AWQ's format.",
    "convert": "Write a copy of a 4-bit model in the order of the kernels.",
    "eval": "Measure how well a model foretells a text.",
    "verify": "Compare a backend with the reference, token by token.",
    "bench": "Measure prefill and decode speed.",
    "doctor": "Report what was found here, and what is missing.",
    "completion": "Print the completion script of a shell.",
    "help": "Explain exit-codes, environment, settings or formats.",
}
"""What each is for; it is the object `command` in the module of its name under `llmrs_cli.cli`. The words stand
here as well as there, so that `llmrs --help` imports none of those modules."""

ALIASES = {"run-batch": "batch", "ls": "list"}
"""Names that other tools use; they work and are not listed."""

ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("ps", "load", "stop"), "Nothing runs in the background: each command loads its model."),
    **dict.fromkeys(
        ("import", "create"), "A folder or .gguf file is used where it is: llmrs chat ./model.gguf"
    ),
    "cp": "A model gets another name by: llmrs alias set NAME MODEL",
    "generate": "Ask with: llmrs run MODEL PROMPT",
}
"""Commands of other tools that there is no need of here, and what to do instead."""

COMPLETE_VARIABLE = "_LLMRS_COMPLETE"
"""Set by a shell that wants to know what to offer (`cli.complete`)."""


class Root(click.Group):
    """A group whose commands are imported on first use and whose errors are sentences."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        if incomplete and not incomplete[0].isalnum():
            return super().shell_complete(ctx, incomplete)
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(name, help=what) for name, what in COMMANDS.items() if name.startswith(incomplete)
        ]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = ALIASES.get(cmd_name, cmd_name)
        if name not in COMMANDS:
            return None
        command = importlib.import_module(f"llmrs_cli.cli.{name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            near = get_close_matches(name, [*COMMANDS, *ALIASES], n=1)
            guess = f"Did you mean 'llmrs {near[0]}'?" if near else "'llmrs --help' lists the commands."
            raise UsageError(f"There is no command {quoted(name)}.", hint=ELSEWHERE.get(name, guess))
        return super().resolve_command(ctx, args)

    def main(  # type: ignore[override]  # this one always exits, whatever Click's modes
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run the command line `args` and exit; `CliRunner` comes in here too."""
        if instruction := os.environ.get(COMPLETE_VARIABLE):
            from llmrs_cli.cli.complete import answer_shell

            sys.exit(answer_shell(self, instruction))
        arguments = list(sys.argv[1:] if args is None else args) or ["--help"]
        try:
            with self.make_context(prog_name or "llmrs", arguments, **extra) as ctx:
                status = self.invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
        except SystemExit:
            raise
        except BaseException as error:
            fault = explain(error)
            _print_fault(fault, error)
            sys.exit(int(fault.exit_code))
        sys.exit(int(status) if isinstance(status, int) else int(ExitCode.OK))


def _print_fault(fault: Fault, error: BaseException) -> None:
    """Write the fault to stderr; a stderr that cannot be written changes nothing."""
    if sys.stderr is None:
        return
    lines = [] if fault.message is None else [f"llmrs: {clean(fault.message)}"]
    if fault.message is not None and fault.hint is not None:
        lines.append(f"       {clean(fault.hint)}")
    if lines and os.environ.get(DEBUG_VARIABLE, "") not in ("", "0"):
        lines += map(clean, debug_lines(error))
    if fault.exit_code == ExitCode.INTERRUPTED and sys.stderr.isatty():
        lines.insert(0, "")  # ends the line on which the terminal echoed ^C
    try:
        for line in lines:
            print(line, file=sys.stderr)
        sys.stderr.flush()
    except OSError:
        pass


@click.group(
    "llmrs",
    cls=Root,
    context_settings={"auto_envvar_prefix": "LLMRS", "help_option_names": ["-h", "--help"]},
    epilog="Answers and data go to stdout; progress, thinking and notices to stderr.",
)
@click.version_option(__version__, "-V", "--version", message="llmrs %(version)s")
def root() -> None:
    """Run language models on this machine.

    \b
      llmrs chat                              talk to a model
      llmrs chat qwen2.5-3b -p "Why is the sky blue?"
      llmrs chat -c                           go on where you left
      llmrs batch prompts.jsonl -o answers.jsonl
      llmrs serve qwen2.5-3b                  answer OpenAI clients
      llmrs doctor                            what was found here, and what is missing
    """


def main() -> NoReturn:
    """Entry point of the process: `root.main` with signals and standard streams in order."""
    signal.signal(signal.SIGTERM, _on_sigterm)
    for stream, errors in (
        (sys.stdin, "surrogateescape"),
        (sys.stdout, "backslashreplace"),
        (sys.stderr, "backslashreplace"),
    ):
        if stream is not None:
            # Text is UTF-8 whatever the locale says; a lone surrogate must not end the program.
            stream.reconfigure(encoding="utf-8", errors=errors)  # type: ignore[union-attr]
    try:
        root.main(prog_name="llmrs")
    except SystemExit as leaving:
        if leaving.code != int(ExitCode.ENGINE_FAULT):
            raise
        _settle_stdout()
        # What a failed device holds cannot be given back: libraries would say so in tracebacks as they are torn down.
        os._exit(int(ExitCode.ENGINE_FAULT))
    finally:
        _settle_stdout()


def _on_sigterm(signum: int, frame: FrameType | None) -> None:
    raise Terminated


def _settle_stdout() -> None:
    """Point stdout at nothing if it can no longer be written, so that the interpreter ends in silence."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
