"""What threads meet on: no addition is lost, and arguments arrive as they were packed."""

from __future__ import annotations

import threading
from typing import Any

import numba
import numpy as np

from llmrs_cli.kernels.simd import atomics
from llmrs_cli.kernels.simd.kinds import BOARD, INT, VALUES

ROUNDS, THREADS = 20_000, 4


def add_many(board, rounds):  # type: ignore[no-untyped-def]
    last = 0
    for _ in range(rounds):
        last = atomics.atomic_add(board, 1, 3)
        atomics.pause()
    return last


def test_no_addition_of_four_threads_is_lost() -> None:
    board = np.zeros(3, np.int64)
    loop: Any = numba.njit(nogil=True)(add_many)
    loop(board, 0)
    threads = [threading.Thread(target=loop, args=(board, ROUNDS)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert board.tolist() == [0, 3 * ROUNDS * THREADS, 0]


def test_an_addition_returns_what_was_there() -> None:
    board = np.array([0, 40, 0], np.int64)
    assert numba.njit(add_many)(board, 1) == 40


def hand_over(board):  # type: ignore[no-untyped-def]
    while atomics.atomic_load(board, 0) == 0:
        atomics.give_way()
    board[2] = board[1] + 1
    atomics.atomic_store(board, 0, 2)
    atomics.nap(1)


def test_what_was_written_before_a_store_is_seen_with_it() -> None:
    loop: Any = numba.njit(nogil=True)(hand_over)
    loop(np.array([1, 0, 0], np.int64))
    board = np.zeros(3, np.int64)
    other = threading.Thread(target=loop, args=(board,))
    other.start()
    board[1] = 41
    board[0] = 1
    other.join()
    assert board.tolist() == [2, 41, 42]


PACK, UNPACK = atomics.package(INT, VALUES, BOARD)


def there_and_back(number, values, board):  # type: ignore[no-untyped-def]
    arguments = (number, values, board)
    place = PACK(arguments)
    again, inside, seen = UNPACK(place)
    inside[1] += np.float32(again)
    seen[0] += 1
    atomics.hold(arguments)
    return again + inside.size


def test_arguments_come_out_of_an_address_as_the_same_arrays() -> None:
    values, board = np.ones(3, np.float32), np.zeros(2, np.int64)
    assert numba.njit(there_and_back)(5, values, board) == 8
    assert values.tolist() == [1, 6, 1]
    assert board.tolist() == [1, 0]


def test_packing_leaves_reference_counts_as_they_were() -> None:
    loop: Any = numba.njit(there_and_back)
    for _ in range(100):
        values = np.ones(1000, np.float32)
        loop(0, values, np.zeros(2, np.int64))
        assert values[1] == 1
        del values  # a count too low would have freed it before
