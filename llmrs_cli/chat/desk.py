"""What a conversation needs from outside: other models, an editor, a clipboard, the lines that were typed.

`cli.desk.TerminalDesk` is the real one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from llmrs_cli.text.generate import TextEngine


class Desk(Protocol):
    """Each method raises an LlmrsError if it cannot do what it says."""

    commit: str | None
    """Of the repository of the Hub that the model which answers came from; None: from somewhere else."""

    def open_model(self, name: str, old: TextEngine) -> TextEngine:
        """The engine of another model. `old` is closed once the new one is sure to be found."""

    def models(self) -> list[str]:
        """Names of the models on this machine."""

    def copy(self, text: str) -> str:
        """Put `text` into the clipboard; a sentence about it."""

    def edit(self, text: str) -> str | None:
        """`text` as the user left it in an editor; None if it was not saved."""

    def typed(self) -> list[str]:
        """Earlier lines, the last one at the end."""

    def forget_typed(self) -> None:
        """Empty that list, on disk as well."""

    def use_vi(self, on: bool) -> None:
        """vi keys, else emacs keys."""
