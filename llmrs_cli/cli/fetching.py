"""How a download looks: bytes, speed and the time that is left, in the one status line of the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llmrs_cli.cli.terminal import Terminal


class Fetching:
    """Listens to the hub (`hub.progress.Progress`) on behalf of a terminal."""

    def __init__(self, terminal: Terminal, clock: Callable[[], float] = time.monotonic) -> None:
        self._terminal, self._clock = terminal, clock

    def notice(self, text: str) -> None:
        """Good to know."""
        self._terminal.notice(text)

    def warn(self, text: str) -> None:
        """Not to be missed."""
        self._terminal.warn(text)

    @contextmanager
    def working(self, text: str) -> Iterator[FetchBar]:
        """Files arrive until the context ends."""
        with self._terminal.working(text) as status:
            yield FetchBar(text, status.say, self._clock)


class FetchBar:
    """Turns counts of bytes into a line. What an earlier run had brought does not count as speed."""

    def __init__(self, text: str, say: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._text, self._say, self._clock = text, say, clock
        self._begun: tuple[float, int] | None = None

    def update(self, done: int, total: int) -> None:
        """`done` of `total` bytes are here."""
        from llmrs_cli.hub.files import size_text

        now = self._clock()
        began, had = self._begun = self._begun or (now, done)
        line = f"{self._text}: {size_text(done)} of {size_text(total)}"
        if now > began and done > had:
            speed = (done - had) / (now - began)
            line += f", {size_text(int(speed))}/s, {clock_text((total - done) / speed)} left"
        self._say(line)


def clock_text(seconds: float) -> str:
    """A length of time as 0:05, 12:34 or 1:02:03."""
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
