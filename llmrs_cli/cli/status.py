"""One line that says what takes its time: a spinner with a count where lines can be redrawn.

Nothing is drawn in the first moments, so that quick work stays silent. Where nothing may animate, one plain
line appears after two seconds and no more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

SHOW_AFTER = 0.3
"""Seconds before an animated line appears."""
SAY_AFTER = 2.0
"""Seconds before a plain line is printed."""
FRAME = 0.1
FRAMES = "|/-\\"

Draw = Callable[[str | None, bool], None]
"""Show a text, or with None erase it; True: as a line that stays."""


class Status:
    """A status line, alive inside its `with` block."""

    def __init__(self, text: str, draw: Draw, *, animate: bool) -> None:
        self._text, self._draw, self._animate = text, draw, animate
        self._count = ""
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def update(self, done: int, total: int) -> None:
        """Show how far the work is; `total` may be 0 if nobody knows."""
        self._count = f" {100 * done // total} %" if total else ""

    def say(self, text: str) -> None:
        """Name what is being done now."""
        self._text, self._count = text, ""

    def __enter__(self) -> Status:
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        if self._done.wait(SHOW_AFTER if self._animate else SAY_AFTER):
            return
        if not self._animate:
            self._draw(f"{self._text} ...", True)
            return
        frame = 0
        while not self._done.wait(FRAME):
            self._draw(f"{FRAMES[frame % len(FRAMES)]} {self._text}{self._count}", False)
            frame += 1
        self._draw(None, False)
