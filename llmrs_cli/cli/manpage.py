"""Man pages from the Click tree: the same text as `--help`, in roff. Used by `make docs` and its test.

`pages()` is pure; `python -m llmrs_cli.cli.manpage DIR` writes one file per command. A page carries no
date, so that it changes only when the command does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import click

from llmrs_cli import __version__
from llmrs_cli.errors import ExitCode

EXIT_MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.RUNTIME: "something failed at run time",
    ExitCode.USAGE: "wrong usage or configuration",
    ExitCode.ROWS_FAILED: "a batch finished and some of its rows failed",
    ExitCode.ACCESS: "the Hub refuses access: no token, licence not accepted, or pending",
    ExitCode.MODEL: "a model or file is missing or not usable",
    ExitCode.DOES_NOT_FIT: "does not fit in memory",
    ExitCode.NETWORK: "network down, or offline and not in the cache",
    ExitCode.ENGINE_FAULT: "the engine or the device failed",
    ExitCode.TIMEOUT: "--timeout was reached",
    ExitCode.INTERRUPTED: "interrupted",
    ExitCode.BROKEN_PIPE: "the reader of stdout went away",
    ExitCode.TERMINATED: "terminated",
}


def pages(root: click.Group, name: str = "llmrs") -> dict[str, str]:
    """File name → roff source, for the root command and every command that is not hidden."""
    context = click.Context(root, info_name=name, **root.context_settings)
    commands = {
        child: command
        for child in root.list_commands(context)
        if (command := root.get_command(context, child)) is not None and not command.hidden
    }
    others = [name, *(f"{name}-{child}" for child in commands)]
    made = {f"{name}.1": _page(root, context, name, others, commands)}
    for child, command in commands.items():
        title = f"{name}-{child}"
        below = click.Context(command, info_name=child, parent=context)
        made[f"{title}.1"] = _page(command, below, title, others, _children(command, below))
    return made


def _children(command: click.Command, context: click.Context) -> dict[str, click.Command]:
    """The commands of a group under their usage; a command by itself has none."""
    if not isinstance(command, click.Group):
        return {}
    found = {}
    for name in command.list_commands(context):
        if (child := command.get_command(context, name)) is not None:
            pieces = child.collect_usage_pieces(click.Context(child, info_name=name, parent=context))
            found[" ".join([name, *pieces])] = child
    return found


def _page(
    command: click.Command,
    context: click.Context,
    title: str,
    others: list[str],
    commands: dict[str, click.Command],
) -> str:
    lines = [
        f'.TH "{title.upper()}" "1" "" "llmrs {__version__}" "llmrs manual"',
        ".SH NAME",
        f"{_text(title)} \\- {_text(_summary(command))}",
        ".SH SYNOPSIS",
        f"\\fB{_text(context.command_path)}\\fR {_text(' '.join(command.collect_usage_pieces(context)))}",
        ".SH DESCRIPTION",
        *_paragraphs(cleandoc(command.help or "")),  # Python 3.13 has taken the indentation off already
    ]
    if commands:
        lines.append(".SH COMMANDS")
        for child, entry in commands.items():
            lines += [".TP", f"\\fB{_text(child)}\\fR", _text(_summary(entry))]
    lines.append(".SH OPTIONS")
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            lines += [".TP", f"\\fB{_text(record[0])}\\fR", _text(" ".join(record[1].split())) or "\\&"]
    if command.epilog:
        lines += [".SH NOTES", *_paragraphs(command.epilog)]
    lines.append(".SH EXIT STATUS")
    for code, meaning in EXIT_MEANINGS.items():
        lines += [".TP", f"\\fB{int(code)}\\fR", _text(meaning)]
    lines += [".SH SEE ALSO", _text(", ".join(f"{other}(1)" for other in others if other != title))]
    return "\n".join(lines) + "\n"


def _summary(command: click.Command) -> str:
    """The first sentence of the help, without its full stop."""
    first = (command.help or "").split("\n\n")[0].replace("\b", "")
    return " ".join(first.split()).removesuffix(".")


def _paragraphs(text: str) -> Iterator[str]:
    """Help text as Click reads it: a block after a backspace line keeps its line breaks."""
    for number, block in enumerate(text.strip().split("\n\n")):
        if number:
            yield ".PP"
        if block.lstrip().startswith("\b"):
            yield from (
                ".nf",
                *(_text(line) for line in block.lstrip().lstrip("\b").strip("\n").splitlines()),
                ".fi",
            )
        else:
            yield _text(" ".join(block.split()))


def _text(plain: str) -> str:
    """Escape what roff would read: backslashes, hyphens that must stay hyphens, leading dots."""
    escaped = plain.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def write(folder: Path) -> None:
    """Make `folder` hold exactly the pages of today's commands."""
    from llmrs_cli.cli.root import root

    made = pages(root)
    for old in folder.glob("*.1"):
        if old.name not in made:
            old.unlink()
    for name, source in made.items():
        (folder / name).write_text(source, "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
