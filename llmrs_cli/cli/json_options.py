"""Options whose value is a JSON object: --schema, a form for answers, and --template-kwargs."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import click

from llmrs_cli.cli.options import Decorator
from llmrs_cli.cli.parameters import text
from llmrs_cli.errors import UsageError

schema_option: Decorator = click.option(
    "--schema", type=text, metavar="FILE|JSON", help="Hold answers to this JSON schema."
)


def json_object(context: click.Context, parameter: click.Parameter, typed: str | None) -> dict[str, Any]:
    """What a callback makes of a JSON object; {} if nothing was typed."""
    try:
        value = json.loads(typed) if typed is not None else {}
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise click.BadParameter(f"{typed!r} is not a JSON object.")
    return value


template_option: Decorator = click.option(
    "--template-kwargs",
    callback=json_object,
    metavar="JSON",
    help="Variables for the chat template, as a JSON object.",
)


def read_schema(typed: str) -> dict[str, Any]:
    """A schema that stands on the command line, or in the file that is named there.

    Raises UsageError if it is no JSON object, RequestError if answers cannot be held to it.
    """
    from llmrs_cli.chat.source import read_file
    from llmrs_cli.text.grammar import json_schema
    from llmrs_cli.text.grammar_trial import GrammarTrial

    source = typed if typed.lstrip().startswith("{") else read_file(typed)
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise UsageError("The schema is not a JSON object.", hint="Give --schema a file or the JSON itself.")
    with closing(GrammarTrial()) as trial:
        trial.check(json_schema(schema, "schema"), "schema")
    return schema


def json_form(schema: str | None, *, json_mode: bool) -> dict[str, Any] | None:
    """The schema that --schema or --json-mode holds answers to; None: neither was typed."""
    if schema is not None and json_mode:
        raise UsageError("--schema and --json-mode are both given.", hint="Give one of them.")
    if json_mode:
        return {"type": "object"}
    return None if schema is None else read_schema(schema)
