"""The options that `chat` and `run` share, as one frozen value.

@ask_options        what is asked, how the answer is shown, what is kept   →  ask: Ask
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import click

from llmrs_cli.cli.json_options import read_schema, schema_option, template_option
from llmrs_cli.cli.options import Decorator
from llmrs_cli.cli.parameters import text
from llmrs_cli.cli.time_limit import timeout_option
from llmrs_cli.errors import UsageError

THINK = ("on", "off", "low", "medium", "high")


@dataclass(frozen=True, slots=True)
class Ask:
    """What the command line says beside model and sampling."""

    files: tuple[str, ...]
    system: str | None
    system_file: str | None
    no_stdin: bool
    cont: bool
    session: str | None
    no_save: bool
    overflow: str | None
    think: str | None
    hide_thinking: bool
    template_kwargs: dict[str, Any]
    choices: tuple[str, ...]
    n: int
    schema: str | None
    json_mode: bool
    extract: bool
    as_json: bool
    stats: bool
    verbose: bool
    no_stream: bool
    markdown: bool | None
    vi: bool | None
    timeout: float | None

    @property
    def arguments(self) -> dict[str, Any]:
        """For the chat template."""
        said: dict[str, Any] = {}
        if self.schema is not None or self.json_mode:
            said["enable_thinking"] = False  # a thought has no place in the form
        if self.think is not None:
            said["enable_thinking"] = self.think != "off"
            said |= {"reasoning_effort": self.think} if self.think not in ("on", "off") else {}
        return said | self.template_kwargs

    def grammar(self) -> str:
        """What the answer must match; empty: anything. Raises UsageError and RequestError."""
        if self.schema is None and not self.json_mode:
            return ""
        from llmrs_cli.text import grammar

        if self.schema is None:
            return grammar.json_object()
        return grammar.json_schema(read_schema(self.schema), "schema")

    @property
    def wants_result(self) -> bool:
        """Whether an option only makes sense for one answer."""
        return self.as_json or self.extract or bool(self.choices) or self.n > 1

    def check(self) -> None:
        """Raise UsageError for options that contradict each other."""
        rules = {
            "-s and --system-file": self.system is not None and self.system_file is not None,
            "-c and --session": self.cont and self.session is not None,
            "--choices and -x": bool(self.choices) and self.extract,
            "--schema and --json-mode": self.schema is not None and self.json_mode,
            "--choices and --schema or --json-mode": bool(self.choices)
            and bool(self.schema or self.json_mode),
            "--choices and -c or --session": bool(self.choices) and (self.cont or self.session is not None),
            "--n and -c or --session": self.n > 1 and (self.cont or self.session is not None),
            "--n and --choices": self.n > 1 and bool(self.choices),
        }
        for names, broken in rules.items():
            if broken:
                raise UsageError(f"{names} are both given.", hint="Give one of them.")


def ask_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the group; the command takes it as `ask: Ask`."""

    @functools.wraps(function)
    def with_ask(**values: Any) -> Any:
        ask = Ask(**{field.name: values.pop(field.name) for field in fields(Ask)})
        ask.check()
        return function(ask=ask, **values)

    made: Callable[..., Any] = with_ask
    for option in reversed(_OPTIONS):
        made = option(made)
    return made


def labels(context: click.Context, parameter: click.Parameter, typed: str | None) -> tuple[str, ...]:
    """Labels between commas; one in quotes may hold a comma."""
    if typed is None:
        return ()
    found = [label.strip() for label in next(csv.reader([text(typed)], skipinitialspace=True), [])]
    if len(found) < 2 or not all(found) or len(set(found)) < len(found):
        raise click.BadParameter(f"{typed!r} is not at least two different labels, such as yes,no.")
    return tuple(found)


_OPTIONS: list[Decorator] = [
    click.option(
        "-f",
        "--file",
        "files",
        multiple=True,
        metavar="FILE",
        help="Add a text file; - is stdin; repeatable.",
    ),
    click.option("-s", "--system", type=text, metavar="TEXT", help="System prompt."),
    click.option("--system-file", metavar="FILE", help="System prompt from a file."),
    click.option("--no-stdin", is_flag=True, help="Do not add what is piped in."),
    click.option("-c", "--continue", "cont", is_flag=True, help="Go on with the session that was used last."),
    click.option(
        "--session",
        metavar="NAME",
        help="Go on with this saved session, by default with its model, or begin it.",
    ),
    click.option("--no-save", is_flag=True, help="Keep neither the conversation nor the lines typed in it."),
    click.option(
        "--overflow",
        type=click.Choice(["error", "oldest", "summarize"]),
        help="When the context is full: refuse, leave the oldest out, or sum them up; it is always said. "
        "Default: oldest in a conversation, else error.",
    ),
    click.option(
        "--think",
        type=click.Choice(THINK),
        is_flag=False,
        flag_value="on",
        help="Whether and how much a model that can think does so first.",
    ),
    click.option("-R", "--hide-thinking", is_flag=True, help="Do not show thoughts."),
    template_option,
    click.option(
        "--choices",
        callback=labels,
        metavar="A,B,...",
        help="Answer with the likeliest of these labels; --json gives the probability of each.",
    ),
    click.option(
        "--n",
        type=click.IntRange(1, 128),
        default=1,
        metavar="K",
        help="Print K answers, drawn side by side, with an empty line between them.",
    ),
    schema_option,
    click.option("--json-mode", is_flag=True, help="Hold the answer to a JSON object."),
    click.option("-x", "--extract", is_flag=True, help="Print only the first code block of the answer."),
    click.option("--json", "as_json", is_flag=True, help="Print the answer and its figures as JSON."),
    click.option("--stats", is_flag=True, help="Figures on stderr, also away from a terminal."),
    click.option(
        "-v", "--verbose", is_flag=True, help="Figures, and before them the commit, context and sampling."
    ),
    click.option("--no-stream", is_flag=True, help="Print the answer when it is complete."),
    click.option(
        "--markdown/--no-markdown",
        default=None,
        help="Whether an answer on a terminal is shown as Markdown. Default: where there is colour.",
    ),
    click.option(
        "--vi/--emacs",
        default=None,
        help="Keys that edit lines in a conversation. Default: as the setting 'keys' says.",
    ),
    timeout_option,
]
