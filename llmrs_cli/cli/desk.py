"""What a conversation at a terminal needs from outside: other models, an editor, a clipboard, its input line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from llmrs_cli.cli.models import choose, open_engine
from llmrs_cli.cli.options import ModelOptions
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.errors import EngineFault, LlmrsError, UsageError, counted

if TYPE_CHECKING:
    from llmrs_cli.chat.reader import Reader
    from llmrs_cli.text.generate import TextEngine

OSC_LIMIT = 74_000
"""Bytes that terminals take in one sequence."""
_TOOLS = {
    "WAYLAND_DISPLAY": ("wl-copy",),
    "DISPLAY": ("xclip", "-selection", "clipboard"),
}
"""Variable of a window system → the program that sets its clipboard."""


@dataclass(slots=True)
class TerminalDesk:
    """Implements `chat.desk.Desk`."""

    options: ModelOptions
    terminal: Terminal
    reader: Reader | None = None
    opened: TextEngine | None = None
    """The engine that was opened last; whoever made the desk closes it."""
    commit: str | None = None

    def open_model(self, name: str, old: TextEngine) -> TextEngine:
        """Two models need not fit at once: the old one goes when the new one is on this machine. If that
        one cannot be loaded then, EngineFault says that there is none."""
        options = replace(self.options, model=name, revision=None)
        chosen = choose(options, self.terminal)
        from llmrs_cli.engine.weights.checkpoint import open_checkpoint

        open_checkpoint(chosen.path)  # whatever is wrong with its files is found while the old one lives
        old.close()
        try:
            engine = open_engine(chosen, self.terminal, rows=options.rows or 1)
        except LlmrsError as error:
            raise EngineFault(
                f"{error.message} The former model is gone.",
                hint="llmrs chat -c goes on with the conversation.",
            ) from error
        self.options, self.opened, self.commit = options, engine, chosen.commit
        return engine

    def models(self) -> list[str]:
        from llmrs_cli.config import directories
        from llmrs_cli.hub.shelf import kept_models

        places = directories()
        return sorted({entry.name for entry in kept_models(places.hub, places.cache)})

    def copy(self, text: str) -> str:
        tool = _clipboard_tool()
        if tool is not None:
            return _copy_with(tool, text)
        if len(text.encode("utf-8", "replace")) > OSC_LIMIT:
            raise UsageError(
                "The text is too long for the terminal's clipboard.", hint="/export writes a file."
            )
        self.terminal.clipboard(text)
        return f"Given to the terminal's clipboard: {counted(len(text), 'character')}."

    def edit(self, text: str) -> str | None:
        try:
            return click.edit(text, extension=".md")
        except click.ClickException as error:
            raise LlmrsError(f"The editor failed: {error.message}", hint="Set VISUAL or EDITOR.") from error

    def typed(self) -> list[str]:
        return self.reader.typed() if self.reader is not None else []

    def forget_typed(self) -> None:
        if self.reader is not None:
            self.reader.forget()

    def use_vi(self, on: bool) -> None:
        if self.reader is not None:
            self.reader.use_vi(on)


def _clipboard_tool() -> tuple[str, ...] | None:
    """The program that sets the clipboard of this machine; None over ssh and where there is none."""
    if os.environ.get("SSH_CONNECTION"):
        return None
    if sys.platform == "darwin":
        return ("pbcopy",)
    for variable, tool in _TOOLS.items():
        if os.environ.get(variable) and shutil.which(tool[0]):
            return tool
    return None


def _copy_with(tool: tuple[str, ...], text: str) -> str:
    try:
        subprocess.run(
            tool,
            input=text.encode("utf-8", "replace"),
            check=True,
            timeout=5,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise LlmrsError(f"{tool[0]} could not set the clipboard.") from error
    return f"In the clipboard: {counted(len(text), 'character')}."
