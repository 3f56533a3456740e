"""Asks before something is removed: on a terminal only; scripts say -y."""

from __future__ import annotations

import sys

from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.errors import LlmrsError, UsageError


def confirm(terminal: Terminal, question: str, *, yes: bool) -> None:
    """Return if the answer to `question` is yes, or `yes` says so already.

    Raises LlmrsError if the answer is no, UsageError if there is nobody to ask.
    """
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty() or not terminal.err_is_terminal:
        raise UsageError(
            "Removing needs a yes, and there is no terminal to ask on.",
            hint="Add -y, or look first with --dry-run.",
        )
    if terminal.ask(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise LlmrsError("Nothing was removed.")
