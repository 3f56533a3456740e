"""Jobs are done completely, each part once, whatever the helpers do or fail to do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.kernels.simd import crew, program
from llmrs_cli.kernels.simd.atomics import atomic_add, atomic_load, nap, package
from llmrs_cli.kernels.simd.crew import PARTS_EACH, TICKET, Crew, share_out
from llmrs_cli.kernels.simd.kinds import BOARD, INT, SHARE

pack, unpack = package(BOARD, INT)


def count_part(part, parts, arguments):  # type: ignore[no-untyped-def]
    """Adds 1 to counter `part`, after some work of uneven length."""
    counters, weight = unpack(arguments)
    total = 0
    for i in range(weight * (part % 3)):
        total += i ^ part
    atomic_add(counters, part, 1 if total >= 0 else 2)


def idle(board: NDArray[np.int64]) -> None:
    """What a helper does that is never called."""


def run_jobs(board, function, jobs, pieces, weight, counters):  # type: ignore[no-untyped-def]
    for _ in range(jobs):
        share_out(board, function, pieces, pack((counters, weight)))


@pytest.fixture(scope="module")
def jobs() -> Any:
    """Call (crew, jobs, pieces, weight) → how often each part was done."""
    function: Any = numba.cfunc(SHARE, error_model="numpy")(count_part)
    run: Any = numba.njit(error_model="numpy")(run_jobs)

    def call(gang: Crew, count: int, pieces: int, weight: int = 0) -> list[int]:
        counters = np.zeros(1000, np.int64)
        run(gang.board, function.address, count, pieces, weight, counters)
        return counters[counters > 0].tolist()  # type: ignore[no-any-return]

    return call


@pytest.fixture
def gang() -> Iterator[Crew]:
    """A crew of four that is awake."""
    made = Crew(4, program.load(program.default_cache()).help_out)
    made.wake()
    yield made
    made.close()


@pytest.mark.parametrize("pieces", [1, 2, 5, 31, 1000])
def test_every_part_of_every_job_is_done_once(gang: Crew, jobs: Any, pieces: int) -> None:
    assert jobs(gang, 500, pieces) == [500] * min(pieces, 4 * PARTS_EACH)


def test_jobs_of_uneven_parts_end_complete(gang: Crew, jobs: Any) -> None:
    assert jobs(gang, 50, 32, weight=20_000) == [50] * 32


def meet(part, parts, arguments):  # type: ignore[no-untyped-def]
    """Part 0 ends only (or after half a minute) when another part has been done: by somebody else."""
    counters, _ = unpack(arguments)
    if part == 0:
        for _ in range(300_000):
            if atomic_load(counters, 1) > 0:
                break
            nap(100)
        else:
            return
    atomic_add(counters, part, 1)


def test_helpers_take_parts(gang: Crew) -> None:
    function: Any = numba.cfunc(SHARE, error_model="numpy")(meet)
    run: Any = numba.njit(error_model="numpy")(run_jobs)
    counters = np.zeros(2, np.int64)
    run(gang.board, function.address, 1, 2, 0, counters)
    assert counters.tolist() == [1, 1]


def test_a_crew_that_was_never_woken_is_no_hindrance(jobs: Any) -> None:
    sleeping = Crew(4, idle)
    assert jobs(sleeping, 20, 10) == [20] * 10


def test_one_thread_does_a_job_in_one_part(jobs: Any) -> None:
    assert jobs(Crew(1, idle), 3, 10) == [3]


def test_job_numbers_wrap(jobs: Any) -> None:
    made = Crew(4, idle)
    made.board[TICKET] = ((1 << 22) - 1) << 40
    assert jobs(made, 3, 7) == [3] * 7


def helpers_of(made: Crew) -> set[threading.Thread]:
    """The threads that the first call starts."""
    before = set(threading.enumerate())
    made.wake()
    return set(threading.enumerate()) - before


@pytest.mark.parametrize("asleep", [True, False])
def test_closing_sends_the_helpers_home(asleep: bool) -> None:
    help_out = program.load(program.default_cache()).help_out
    made = Crew(3, (lambda board: None) if asleep else help_out)
    helpers = helpers_of(made)
    made.wake()
    made.close()
    made.close()
    assert len(helpers) == 2 or asleep
    assert not any(helper.is_alive() for helper in helpers)


def test_a_crew_that_is_dropped_leaves_no_thread() -> None:
    made = Crew(2, lambda board: None)
    helpers = helpers_of(made)
    del made
    assert not any(helper.is_alive() for helper in helpers)


def test_a_process_ends_while_helpers_are_awake() -> None:
    code = """
from llmrs_cli.kernels.simd import program
from llmrs_cli.kernels.simd.crew import Crew
crew = Crew(4, program.load(program.default_cache()).help_out)
crew.wake()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=100)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_threads_are_physical_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert crew.usable_threads(tmp_path) == 2
    assert crew.usable_threads(tmp_path / "missing") == 4


def test_the_number_of_threads_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_NUM_THREADS", "1")
    config: Any = numba.config
    monkeypatch.setattr(config, "NUMBA_NUM_THREADS", 1)
    assert crew.usable_threads() == 1
