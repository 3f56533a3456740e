"""What a batch says of itself on stderr while it runs and when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable

from llmrs_cli.batch.job import Counts
from llmrs_cli.errors import counted

EVERY = 60.0
"""Seconds between lines where nothing can be redrawn."""


class Progress:
    """Figures of one run since it was made."""

    def __init__(self, reused: Counts, read: Callable[[], int], share: Callable[[], float | None]) -> None:
        """`read`: rows read so far, `share`: of the input that they were, None if nobody knows."""
        self._reused, self._read, self._share = reused, read, share
        self._began = self._said = time.monotonic()
        self.counts = Counts()

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return max(time.monotonic() - self._began, 1e-9)

    def is_due(self) -> bool:
        """Whether a line is to be printed now; then not for a while."""
        now = time.monotonic()
        if now - self._said < EVERY:
            return False
        self._said = now
        return True

    def line(self) -> str:
        """Rows, tokens, speed, and how long it will take."""
        left = self._left()
        return f"Answering: {figures(self._reused, self.counts, self.seconds)}{left}"

    def _left(self) -> str:
        share, rows = self._share(), self.counts.rows
        if not share or not rows:
            return ""
        to_do = max(self._read() / share - self._reused.rows - rows, 0.0)
        return f", about {duration(to_do * self.seconds / rows)} left"


def figures(reused: Counts, computed: Counts, seconds: float) -> str:
    """Everything that is done, and how fast this run did its part."""
    failed = reused.failed + computed.failed
    notes = [f"{failed} failed"] if failed else []
    notes += [f"{reused.rows} from before"] if reused.rows else []
    notes += [f"{computed.merged} equal to others"] if computed.merged else []
    rows = ", ".join([counted(reused.rows + computed.rows, "row"), *notes])
    tokens = computed.completion_tokens
    return f"{rows}, {counted(tokens, 'token')} in {duration(seconds)} ({tokens / seconds:.1f} tok/s)"


def duration(seconds: float) -> str:
    """A time for people."""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"
