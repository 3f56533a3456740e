"""Asks a model one question, or talks to it.

llmrs chat [MODEL] [-p TEXT] [-f FILE]... [-s SYSTEM]
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from llmrs_cli.cli.models import choose, open_engine
from llmrs_cli.cli.options import ModelOptions, Sampling, model_options, quiet_option, sampling_options
from llmrs_cli.cli.parameters import text
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.engine.types import FinishReason
from llmrs_cli.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from llmrs_cli.text.generate import TextEngine


@click.command("chat")
@model_options()
@click.option("-p", "--prompt", type=text, metavar="TEXT", help="Ask this and leave.")
@click.option(
    "-f", "--file", "files", multiple=True, metavar="FILE", help="Add a text file; - is stdin; repeatable."
)
@click.option("-s", "--system", type=text, metavar="TEXT", help="System prompt.")
@click.option("--system-file", metavar="FILE", help="System prompt from a file.")
@click.option("--no-stdin", is_flag=True, help="Do not add what is piped in.")
@sampling_options
@quiet_option
def command(
    model: ModelOptions,
    prompt: str | None,
    files: tuple[str, ...],
    system: str | None,
    system_file: str | None,
    no_stdin: bool,
    sampling: Sampling,
    quiet: bool,
) -> int:
    """Talk to a model, or ask it one question.

    With -p, -f, piped input or away from a terminal, one question is answered and llmrs leaves: the prompt
    comes first, then after a blank line each file and what is piped in. Else a conversation begins; /help
    lists what can be typed.

    stdout carries the answer and nothing else; thinking, notices and figures go to stderr.

    \b
      llmrs chat qwen2.5-3b
      llmrs chat smollm2-135m -p "What is the capital of France?" --temperature 0
      git diff | llmrs chat -p "Write a commit message."
    """
    terminal = Terminal.standard(quiet=quiet)
    system = _system_prompt(system, system_file)
    if (
        prompt is None
        and not files
        and sys.stdin is not None
        and sys.stdin.isatty()
        and terminal.out_is_terminal
    ):
        return _converse(model, system, sampling, terminal)
    question = _question(prompt, files, terminal, read_stdin=not no_stdin)
    if not question.strip():
        if prompt is not None or files:
            raise UsageError("The prompt is empty.", hint="Give it a text with -p.")
        terminal.notice("stdin is empty: there is nothing to answer.")
        return ExitCode.OK
    return _answer_once(model, system, question, sampling, terminal)


def _system_prompt(typed: str | None, file: str | None) -> str | None:
    from llmrs_cli.chat.source import read_file

    if typed is not None and file is not None:
        raise UsageError("-s and --system-file are both given.", hint="Give one of them.")
    return typed if file is None else read_file(file)


def _question(prompt: str | None, files: tuple[str, ...], terminal: Terminal, *, read_stdin: bool) -> str:
    """The text of a one-shot question: nothing of it is read twice."""
    from llmrs_cli.chat import source

    def waiting() -> None:
        terminal.notice("Reading stdin; end it with Ctrl-D, or use --no-stdin.")

    texts = [
        source.read_stdin(sys.stdin, waiting) if name == "-" else source.read_file(name) for name in files
    ]
    alone = prompt is None and not files
    if read_stdin and "-" not in files and (alone or source.is_piped(sys.stdin)):
        texts.append(source.read_stdin(sys.stdin, waiting))
    return source.compose(prompt, texts)


def _answer_once(
    model: ModelOptions, system: str | None, question: str, sampling: Sampling, terminal: Terminal
) -> int:
    from llmrs_cli.chat.session import Session
    from llmrs_cli.text.generate import GenerateOptions

    chosen = choose(model, terminal)
    with open_engine(chosen, terminal, rows=model.rows or 1) as engine:
        shown = Session(engine, GenerateOptions(**sampling.given()), system).ask(question, terminal)
        if shown.finish is FinishReason.LENGTH:
            terminal.warn(_cut(shown.figures.used, engine))
        if terminal.err_is_terminal:
            terminal.stats(shown.figures.line(engine.context))
    return ExitCode.INTERRUPTED if shown.finish is FinishReason.ABORT else ExitCode.OK


def _cut(used: int, engine: TextEngine) -> str:
    if used >= engine.context:
        return f"The answer was cut: the context of {engine.context} tokens is full (--ctx sets it)."
    return "The answer was cut at --max-tokens."


def _converse(model: ModelOptions, system: str | None, sampling: Sampling, terminal: Terminal) -> int:
    from llmrs_cli.chat.reader import Reader
    from llmrs_cli.chat.repl import converse
    from llmrs_cli.chat.session import Session
    from llmrs_cli.text.generate import GenerateOptions

    chosen = choose(model, terminal)
    with open_engine(chosen, terminal, rows=model.rows or 1) as engine:
        session = Session(engine, GenerateOptions(**sampling.given()), system)
        reader = Reader(_history_file(terminal))
        drawn = sampling.over(engine.defaults)
        terminal.notice(f"{chosen.name.text} on {chosen.device}; {drawn}. /help lists what can be typed.")
        converse(session, terminal, reader.read)
    return ExitCode.OK


def _history_file(terminal: Terminal) -> Path | None:
    """Where typed lines are kept; None if there is no place for them."""
    from llmrs_cli.config import directories, private_directory

    try:
        return private_directory(directories().state) / "history"
    except UsageError as error:
        terminal.notice(f"{error.message} Typed lines are not kept.")
        return None
