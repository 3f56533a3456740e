"""`--timeout`: a command that takes longer ends with status 124."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from llmrs_cli.cli.faults import TimedOut
from llmrs_cli.cli.options import Decorator
from llmrs_cli.cli.parameters import FiniteRange

AGAIN = 0.25
"""Seconds after which a command that goes on nevertheless is ended again."""

timeout_option: Decorator = click.option(
    "--timeout",
    type=FiniteRange(0.0, 1e7, min_open=True),
    metavar="SECONDS",
    help="End after this time with status 124.",
)


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Within, TimedOut is raised in the main thread after `seconds`; None: never.

    The kernel's timer counts time that passes, whatever is done to the clock. An error that happens to be raised
    in a destructor or in a callback of a library is ignored there, so it is raised again until it arrives.
    """
    if seconds is None:
        yield
        return

    def end(signum: int, frame: FrameType | None) -> None:
        if not _is_ending():
            raise TimedOut(seconds)

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _is_ending() -> bool:
    """Whether what runs now cleans up after a TimedOut."""
    error = sys.exception()
    while error is not None and not isinstance(error, TimedOut):
        error = error.__context__
    return error is not None
