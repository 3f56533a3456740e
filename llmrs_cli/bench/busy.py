"""How long a GPU computed: events around the two launches of every step. Nothing on other backends.

A step's events are recorded on the stream, so what lies between two of them is work, and what lies between
two pairs is the device waiting for the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llmrs_cli.engine.backends.base import Backend


class Busy:
    """Collects pairs of events once it is started."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Any, Any]] = []
        self._on = False
        self._inside = False

    def start(self) -> None:
        """Count from here on."""
        self._pairs.clear()
        self._on = True

    def seconds(self) -> float | None:
        """Of work since the start; None where no GPU was watched."""
        if not self._pairs:
            return None
        from cupy.cuda import get_elapsed_time

        self._on = False
        self._pairs[-1][1].synchronize()
        return float(sum(get_elapsed_time(*pair) for pair in self._pairs)) / 1e3

    def around(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """`run` with an event before and one after it; only the outermost counts."""

        def watched(*args: Any) -> Any:
            if not self._on or self._inside:
                return run(*args)
            from cupy.cuda import Event

            before, after = Event(), Event()
            self._inside = True
            before.record()
            try:
                return run(*args)
            finally:
                after.record()
                self._inside = False
                self._pairs.append((before, after))

        return watched


@contextmanager
def watch(backend: Backend) -> Iterator[Busy]:
    """Watch the launches of a CUDA backend."""
    busy = Busy()
    if backend.name != "cuda":
        yield busy
        return
    watched: Any = backend
    watched.run, watched.draw = busy.around(backend.run), busy.around(backend.draw)
    try:
        yield busy
    finally:
        del watched.run, watched.draw
