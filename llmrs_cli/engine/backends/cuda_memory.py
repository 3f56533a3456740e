"""Device buffers that live as long as the backend: activations of a step, and pinned host rings.

Nothing is allocated in a step once each buffer has met its largest size; a recorded graph holds addresses,
so whoever records one also keeps the `generation` of the arena and drops the graph when it has changed.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cupy as cp
import numpy as np

_NEEDED = re.compile(r"allocating ([\d,]+) bytes")


@dataclass(slots=True)
class Arena:
    """Named buffers, each as large as its largest use so far."""

    tokens: int = 0
    """Of the largest step: arrays of two dimensions and more have room for so many, from the first on."""
    generation: int = 0
    """Counts the times that a buffer moved."""
    _buffers: dict[tuple[str, str], Any] = field(default_factory=dict)
    _views: dict[tuple[str, tuple[int, ...], Any], Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(int(held.nbytes) for held in self._buffers.values())

    def take(self, name: str, shape: tuple[int, ...], dtype: Any, reserve: int = 0) -> Any:
        """An array of `shape` at the start of buffer `name`; its contents are what the last use left.

        A new buffer has room for `reserve` elements at least.
        """
        view = self._views.get((name, shape, dtype))
        if view is None:
            view = self._views[name, shape, dtype] = self._view(name, shape, np.dtype(dtype), reserve)
        return view

    def _view(self, name: str, shape: tuple[int, ...], kind: np.dtype[Any], reserve: int) -> Any:
        size = math.prod(shape)
        held = self._buffers.get((name, kind.char))
        if held is None or held.size < size:
            if len(shape) > 1:
                reserve = max(reserve, self.tokens * math.prod(shape[1:]))
            self.generation += held is not None
            held = cp.zeros(max(size, reserve), kind)
            self._buffers[name, kind.char] = held
            self._views = {key: view for key, view in self._views.items() if key[0] != name}
        return held[:size].reshape(shape)


@dataclass(slots=True)
class Turns:
    """Pinned memory for what steps draw, in turns; more of them than steps are ever under way."""

    size: int
    """Bytes of each."""
    depth: int = 4
    _memory: list[Any] = field(init=False)
    _turn: int = 0

    def __post_init__(self) -> None:
        self._memory = [cp.cuda.alloc_pinned_memory(self.size) for _ in range(self.depth)]

    def next(self) -> Any:
        """What `current` is from now on."""
        self._turn = (self._turn + 1) % self.depth
        return self.current

    @property
    def current(self) -> Any:
        """The newest step's."""
        return self._memory[self._turn]


@dataclass(slots=True)
class PinnedRing:
    """Pinned host buffers in turn, each free again once the GPU has passed the event of its last use."""

    size: int
    """Bytes of each buffer."""
    depth: int = 3
    _memory: list[Any] = field(init=False)
    _events: list[Any] = field(init=False)
    _next: int = 0

    def __post_init__(self) -> None:
        self._memory = [cp.cuda.alloc_pinned_memory(self.size) for _ in range(self.depth)]
        self._events = [None] * self.depth

    def take(self) -> tuple[int, Any]:
        """(index, memory) of a buffer that the GPU no longer reads; waits for that if need be."""
        index = self._next
        self._next = (index + 1) % self.depth
        if self._events[index] is not None:
            self._events[index].synchronize()
        return index, self._memory[index]

    def used(self, index: int) -> Any:
        """Record on the current stream that what was enqueued so far uses the buffer; the event."""
        event = self._events[index]
        if event is None:
            event = self._events[index] = cp.cuda.Event(disable_timing=True)
        event.record()
        return event


def device_errors() -> tuple[type[Exception], ...]:
    """What CuPy raises where the GPU or its driver fails."""
    return cp.cuda.runtime.CUDARuntimeError, cp.cuda.driver.CUDADriverError


def forgive_destructors() -> None:
    """Say nothing of destructors that a lost GPU refuses: the failure itself has been told."""
    before = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, device_errors()):
            before(unraisable)

    sys.unraisablehook = hook


def explain(error: BaseException, free: Callable[[], int]) -> str | None:
    """A failure of the GPU in a sentence: what it reports, or what was needed and what is `free`."""
    if isinstance(error, MemoryError):
        match = _NEEDED.search(str(error))
        needed = f"{mebibytes(int(match[1].replace(',', '')))} were needed, " if match else ""
        return f"The memory of the GPU ran out: {needed}{mebibytes(free())} are free."
    return f"The GPU reports {error}." if isinstance(error, device_errors()) else None


def mebibytes(count: int) -> str:
    """Bytes for people, in one unit, so that two can be compared."""
    return f"{count / 2**20:,.1f} MiB"
