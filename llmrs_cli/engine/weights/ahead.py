"""Reading weights ahead of their use, in other threads: disks, hashes and unpacking leave Python's lock alone."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from llmrs_cli.engine.weights.packed import Stored
from llmrs_cli.engine.weights.parameters import Parameter

MAX_THREADS = 8
Read = Callable[[str], Stored]
"""Gives a parameter by its name, in memory of its own; raises what `Parameter.read` does."""


@contextmanager
def files_of(parameters: Mapping[str, Parameter], limit: int, *, stored: bool = False) -> Iterator[Read]:
    """A way to read `parameters`, fastest in the order in which they stand there.

    Weights of up to `limit` bytes in their files are read before they are asked for, and one that takes it
    over the limit; 0 reads each when it is asked for. `stored`: 4-bit codes come as the files hold them.
    """
    if limit <= 0:
        yield lambda name: parameters[name].reader(stored=stored)()
        return
    source = _Ahead(parameters, limit, stored=stored)
    try:
        yield source.read
    finally:
        source.close()


class _Ahead:
    """Reads in the order of `parameters` what nobody has asked for yet."""

    def __init__(self, parameters: Mapping[str, Parameter], limit: int, *, stored: bool = False) -> None:
        self._parameters = parameters
        self._limit = limit
        self._stored = stored
        self._coming = deque(parameters)
        self._begun: dict[str, Future[Stored]] = {}
        self._bytes = 0
        self._pool = ThreadPoolExecutor(min(MAX_THREADS, _cores()), thread_name_prefix="weights")
        self._begin()

    def read(self, name: str) -> Stored:
        future = self._begun.pop(name, None)
        if future is None:  # out of turn
            return self._parameters[name].reader(stored=self._stored)()
        values = future.result()
        self._bytes -= self._parameters[name].nbytes
        self._begin()
        return values

    def _begin(self) -> None:
        """Begin to read what is next, up to the limit."""
        while self._coming and self._bytes < self._limit:
            name = self._coming.popleft()
            self._bytes += self._parameters[name].nbytes
            self._begun[name] = self._pool.submit(self._parameters[name].reader(stored=self._stored))

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
