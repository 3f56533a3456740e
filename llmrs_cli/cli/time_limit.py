"""`--timeout`: a command that takes longer ends with status 124."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from llmrs_cli.cli.faults import TimedOut
from llmrs_cli.cli.options import Decorator
from llmrs_cli.cli.parameters import FiniteRange

timeout_option: Decorator = click.option(
    "--timeout",
    type=FiniteRange(0.0, 1e7, min_open=True),
    metavar="SECONDS",
    help="End after this time with status 124.",
)


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Within, TimedOut is raised in the main thread after `seconds`; None: never.

    The kernel's timer counts time that passes, whatever is done to the clock.
    """
    if seconds is None:
        yield
        return

    def end(signum: int, frame: FrameType | None) -> None:
        raise TimedOut(seconds)

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
