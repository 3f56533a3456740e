"""A listener for `hub.progress` that keeps what it was told."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


class Told:
    """Keeps notices, warnings and how far the bar went."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.warnings: list[str] = []
        self.work: list[str] = []
        self.counts: list[tuple[int, int]] = []

    def notice(self, text: str) -> None:
        """Keep it."""
        self.notices.append(text)

    def warn(self, text: str) -> None:
        """Keep it."""
        self.warnings.append(text)

    def working(self, text: str) -> AbstractContextManager[Told]:
        """Keep it; the bar is this object itself."""
        self.work.append(text)
        return nullcontext(self)

    def update(self, done: int, total: int) -> None:
        """Keep it."""
        self.counts.append((done, total))
