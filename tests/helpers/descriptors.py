"""Open file descriptors of this process: counting them, and ending a part of a test as a process ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def open_descriptors() -> set[int]:
    """Numbers of the descriptors that are open now; empty where the system does not tell."""
    folder = Path("/proc/self/fd")
    if not folder.exists():
        return set()
    return {int(entry.name) for entry in folder.iterdir() if entry.is_symlink()}


@contextmanager
def as_a_process() -> Iterator[None]:
    """Close at the end what was opened inside and left open, as the system does for a process that dies.

    Only for code that owns bare descriptors: a file object would close its number a second time.
    """
    before = open_descriptors()
    yield
    for descriptor in open_descriptors() - before:
        os.close(descriptor)
