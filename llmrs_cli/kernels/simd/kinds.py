# mypy: allow-untyped-calls
"""Numba's types of what passes between loops and Python: C-contiguous arrays and tuples of sizes."""

from __future__ import annotations

from typing import Any

import numba

types: Any = numba.types


def array(kind: Any, rank: int) -> Any:
    """A contiguous, writable array."""
    return types.Array(kind, rank, "C")


VALUES, ROWS, HEADS, PARTS = (array(types.float32, rank) for rank in (1, 2, 3, 4))
INDICES, TABLE = array(types.int32, 1), array(types.int32, 2)
BOARD, COUNTS = array(types.int64, 1), array(types.int64, 2)
BYTES, FLAGS, MASK = array(types.uint8, 1), array(types.boolean, 1), array(types.uint32, 2)
WORDS, UNITS = array(types.uint32, 1), array(types.uint32, 4)
INT, REAL, SINGLE = types.int64, types.float64, types.float32
ORDER, PLACE, SIZES = (types.UniTuple(INT, count) for count in (6, 5, 4))
SHARE = types.void(INT, INT, INT)
"""A part of a job: its number, the number of parts, address of the arguments."""
