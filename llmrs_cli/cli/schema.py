"""The option --schema: a form for answers, from a file or from the command line itself."""

from __future__ import annotations

import json
from typing import Any

import click

from llmrs_cli.cli.options import Decorator
from llmrs_cli.cli.parameters import text
from llmrs_cli.errors import UsageError

schema_option: Decorator = click.option(
    "--schema", type=text, metavar="FILE|JSON", help="Hold answers to this JSON schema."
)


def read_schema(typed: str) -> dict[str, Any]:
    """A schema that stands on the command line, or in the file that is named there.

    Raises UsageError if it is no JSON object, RequestError if answers cannot be held to it.
    """
    from llmrs_cli.chat.source import read_file
    from llmrs_cli.text.grammar import check, json_schema

    source = typed if typed.lstrip().startswith("{") else read_file(typed)
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise UsageError("The schema is not a JSON object.", hint="Give --schema a file or the JSON itself.")
    check(json_schema(schema, "schema"), "schema")
    return schema
