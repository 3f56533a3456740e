"""The engine's process with a step that goes wrong: in a load target, what a server makes of it is timed.

    python -m benchmarks.broken_engine HOW STEP FILE READ_FD WRITE_FD

From the STEP-th after FILE appears, each step does what `HOWS` says instead. When the first of them begins is written
there, in seconds of the clock that all processes of a machine share.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from llmrs_cli.engine.api import Engine
from llmrs_cli.server import child


def error() -> None:
    raise RuntimeError("a step went wrong")


def silent_end() -> None:
    """As a thread ends that nobody told to."""
    raise SystemExit


def sleep() -> None:
    time.sleep(1e6)


HOWS: dict[str, Callable[[], None]] = {"error": error, "silent_end": silent_end, "sleep": sleep}


def break_at(step: int, how: Callable[[], None], file: Path) -> None:
    """Let engines of this process do so."""
    left, advance = iter(range(step - 1, -1, -1)), Engine._advance

    def broken(self: Engine) -> None:
        if not file.exists() or (more := next(left, -1)) > 0:
            advance(self)
            return
        if more == 0:
            file.write_text(str(time.monotonic()))
        how()

    Engine._advance = broken  # type: ignore[method-assign]


if __name__ == "__main__":
    name, number, path = sys.argv[1:4]
    del sys.argv[1:4]
    break_at(int(number), HOWS[name], Path(path))
    child.main()
