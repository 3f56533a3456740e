"""Printing what a command has measured: for people, or as one line of JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from llmrs_cli.cli.terminal import Terminal

    Report = TypeVar("Report", bound=DataclassInstance)


def tell(
    report: Report, describe: Callable[[Report], Iterable[str]], terminal: Terminal, *, as_json: bool
) -> None:
    """Write a report to stdout: its fields as JSON, or the lines that `describe` makes of it."""
    if as_json:
        terminal.data(json.dumps(asdict(report)))
        return
    for line in describe(report):
        terminal.data(line)
