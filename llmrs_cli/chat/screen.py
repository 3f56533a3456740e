"""What the chat room writes to; `cli.terminal.Terminal` is the real one."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol


class Screen(Protocol):
    """An answer goes to stdout, everything else to stderr."""

    def answer(self, text: str) -> None:
        """A piece of the answer, shown at once."""

    def recall(self, text: str) -> None:
        """The beginning of the answer that was shown before: of it, only what is still open is shown again."""

    def end_answer(self) -> None:
        """End the answer's last line."""

    def thinking(self, text: str) -> None:
        """A piece of what the model thinks aloud."""

    def notice(self, text: str) -> None:
        """Good to know."""

    def warn(self, text: str) -> None:
        """Not to be missed."""

    def say(self, text: str) -> None:
        """What a command of the session answers."""

    def stats(self, text: str) -> None:
        """A line of figures."""

    def undisturbed(self) -> AbstractContextManager[Any]:
        """Within, keys that are pressed do not show between the words of the answer."""

    def working(self, text: str) -> AbstractContextManager[Any]:
        """Something takes its time; it ends with the context."""
