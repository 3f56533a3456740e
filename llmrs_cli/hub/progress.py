"""What the hub says while it works. `cli.terminal.Terminal` is one listener; `Silent` is the other."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Bar(Protocol):
    """How far a piece of work is."""

    def update(self, done: int, total: int) -> None:
        """`done` of `total` bytes are here; `done` may fall back when a server makes us start again."""


class Progress(Protocol):
    """Who is told what happens; every text is one sentence."""

    def notice(self, text: str) -> None:
        """Good to know."""

    def warn(self, text: str) -> None:
        """Not to be missed."""

    def working(self, text: str) -> AbstractContextManager[Bar]:
        """Something that takes its time begins; it ends with the context."""


class Silent:
    """Tells nobody: for the library, and for tests that look at results only."""

    def notice(self, text: str) -> None:
        """Drop it."""

    def warn(self, text: str) -> None:
        """Drop it."""

    def update(self, done: int, total: int) -> None:
        """Drop it."""

    def working(self, text: str) -> AbstractContextManager[Bar]:
        """A bar that shows nothing."""
        return nullcontext(self)
