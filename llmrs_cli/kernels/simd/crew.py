# mypy: allow-untyped-defs
"""Sharing out work: a crew of threads that help whoever calls `share_out`, and never hold it up.

A job is a C function, the address of its arguments, and a number of parts. Caller and helpers take parts
off one counter until none is left; the caller then waits for parts still under way, nothing else. So a
helper that sleeps, or that the system has no core for, costs its help and no more; a barrier of equals
would cost every job a time slice. Numba's own parallel loops meet at such barriers, need a threading
library of the machine, and compile all they reach several times; they are not used.

The *board* is one int64 array that all see; each field has a cache line to itself. TICKET holds, from
the lowest bit, the next part (20 bits), the number of parts (20 bits) and the job's number (23 bits), so
that one atomic addition takes a part and tells whose it is. While a part is under way its job cannot
end, hence FUNCTION and ARGUMENTS are read after a ticket was drawn.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from llmrs_cli.kernels.simd.atomics import (
    atomic_add,
    atomic_load,
    atomic_store,
    call_at,
    give_way,
    nap,
    pause,
)
from llmrs_cli.kernels.simd.compiling import inner

Board = NDArray[np.int64]
LINE = 16
"""int64 in two cache lines, which processors fetch together."""
TICKET, DONE, FUNCTION, ARGUMENTS, THREADS, CLOSED, FIELDS = (LINE * field for field in range(7))
FIELD_BITS = 20
MOST_PARTS = (1 << FIELD_BITS) - 1
PARTS_EACH = 8
"""Parts per thread that a job is cut into, so that threads of unequal luck end together."""
PAUSES = 20_000
"""How often an idle helper looks for work without rest: about a millisecond, the host's time for a step."""
NAPS, NAP = 10_000, 100
"""How often it then looks, and microseconds in between, before it sleeps until `wake`: some seconds."""
POLITENESS = 2_000
"""Pauses after which a waiting caller lets others have its core."""
FAREWELL = 1.0
"""Seconds to wait for a helper that is sent home."""
TOPOLOGY = Path("/sys/devices/system/cpu")


@inner
def take_part(board):
    """Do one part of the job on the board; false if none is left."""
    ticket = atomic_load(board, TICKET)
    if ticket & MOST_PARTS >= (ticket >> FIELD_BITS) & MOST_PARTS:
        return False
    ticket = atomic_add(board, TICKET, 1)
    part, parts = ticket & MOST_PARTS, (ticket >> FIELD_BITS) & MOST_PARTS
    if part >= parts:
        return False
    call_at(atomic_load(board, FUNCTION), part, parts, atomic_load(board, ARGUMENTS))
    atomic_add(board, DONE, 1)
    return True


@inner
def share_out(board, function, pieces, arguments):
    """Run the C function at address `function` for parts 0 … n - 1 of n ≤ pieces; n suits the crew."""
    threads = board[THREADS]
    parts = min(pieces, PARTS_EACH * threads, MOST_PARTS // 2)
    if threads == 1 or parts == 1:
        call_at(function, 0, 1, arguments)
        return
    number = (atomic_load(board, TICKET) >> (2 * FIELD_BITS)) + 1
    atomic_store(board, FUNCTION, function)
    atomic_store(board, ARGUMENTS, arguments)
    atomic_store(board, DONE, 0)
    atomic_store(board, TICKET, ((number & ((1 << 22) - 1)) << (2 * FIELD_BITS)) | (parts << FIELD_BITS))
    while take_part(board):
        pass
    waited = 0
    while atomic_load(board, DONE) < parts:
        waited += 1
        if waited > POLITENESS:
            give_way()
        else:
            pause()


def help_out(board):
    """Take parts; return after a while without work, or when the crew closes. Runs without Python's lock."""
    idle = 0
    while idle < PAUSES + NAPS and not atomic_load(board, CLOSED):
        if take_part(board):
            idle = 0
        elif idle < PAUSES:
            idle += 1
            pause()
        else:
            idle += 1
            nap(NAP)


class Crew:
    """Helpers for one caller at a time. Threads start with the first call of `wake`."""

    def __init__(self, threads: int, help_out: Callable[[Board], None]) -> None:
        """`threads`: of caller and helpers together; `help_out`: the compiled one."""
        self.board: Board = np.zeros(FIELDS, np.int64)
        self.board[THREADS] = threads
        self._helpers = _Helpers(self.board, help_out)
        # Also when the process ends: no thread may then still run compiled code.
        self._dismiss = weakref.finalize(self, self._helpers.dismiss)

    def wake(self) -> None:
        """Call the helpers to work that is about to come; costs next to nothing if all are awake."""
        self._helpers.wake()

    def close(self) -> None:
        """Send the helpers home."""
        self._dismiss()


class _Helpers:
    """The threads of a crew, and the bell that wakes them."""

    def __init__(self, board: Board, help_out: Callable[[Board], None]) -> None:
        self._board = board
        self._help_out = help_out
        self._sleepers = 0
        self._changed = threading.Condition()
        count = int(board[THREADS]) - 1
        self._threads = [
            threading.Thread(target=self._serve, name="llmrs-cpu", daemon=True) for _ in range(count)
        ]
        self._started = False

    def wake(self) -> None:
        if not self._started:
            self._started = True
            for thread in self._threads:
                thread.start()
        if self._sleepers:
            with self._changed:
                self._changed.notify_all()

    def dismiss(self) -> None:
        with self._changed:
            self._board[CLOSED] = 1
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(FAREWELL)

    def _serve(self) -> None:
        """The life of a helper: help, sleep, help again."""
        while not self._board[CLOSED]:
            self._help_out(self._board)
            with self._changed:
                if not self._board[CLOSED]:
                    self._sleepers += 1
                    self._changed.wait()
                    self._sleepers -= 1


def usable_threads(topology: Path = TOPOLOGY) -> int:
    """NUMBA_NUM_THREADS if it is set, else the physical cores that this process may run on."""
    config: Any = numba.config
    if os.environ.get("NUMBA_NUM_THREADS"):
        return int(config.NUMBA_NUM_THREADS)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return len({_core(topology, cpu) for cpu in allowed})


def _core(topology: Path, cpu: int) -> str:
    """A name of the physical core; the processor's own number where the system does not tell."""
    try:
        return (topology / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)
