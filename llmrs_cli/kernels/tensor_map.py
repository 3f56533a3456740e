"""Where Hopper's copy engine finds a matrix: the 128 bytes that a kernel takes by value.

A map describes (rows, columns) of values and boxes of some rows and columns of them. A line of a box is 128,
64 or 32 bytes in shared memory, swizzled: its 16-byte pieces change places (wgmma reads lines of 128 bytes).
What lies outside of the matrix arrives as zeros, and nothing is written there.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

from llmrs_cli.errors import EngineFault

COLUMNS = 64
"""Of a box that is read: 128 bytes, the width of the swizzle."""
MAX_ROWS = 256
"""Of a box."""


def tensor_map(matrix: Any, rows: int) -> bytes:
    """The map of `matrix` (R, C) 16-bit, contiguous, C a multiple of 8, with boxes of `rows` rows."""
    return _encoded(int(matrix.data.ptr), *matrix.shape, 2, rows, COLUMNS)


def written_map(matrix: Any, rows: int, columns: int) -> bytes:
    """The map of `matrix` (R, C) 16-bit or float32 to which boxes of `rows` rows and `columns` columns go.

    It is contiguous, its rows are multiples of 16 bytes; those of a box are 128, 64 or 32.
    """
    return _encoded(int(matrix.data.ptr), *matrix.shape, matrix.dtype.itemsize, rows, columns)


@lru_cache(maxsize=4096)
def _encoded(address: int, rows: int, columns: int, size: int, box_rows: int, box_columns: int) -> bytes:
    from cuda.bindings import driver

    kinds = driver.CUtensorMapDataType
    swizzles = driver.CUtensorMapSwizzle
    whole, steps, one = driver.cuuint64_t, driver.cuuint32_t, driver.cuuint32_t(1)
    status, encoded = driver.cuTensorMapEncodeTiled(
        {2: kinds.CU_TENSOR_MAP_DATA_TYPE_UINT16, 4: kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT32}[size],
        2,
        address,
        [whole(columns), whole(rows)],
        [whole(columns * size)],
        [steps(box_columns), steps(box_rows)],
        [one, one],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        {
            128: swizzles.CU_TENSOR_MAP_SWIZZLE_128B,
            64: swizzles.CU_TENSOR_MAP_SWIZZLE_64B,
            32: swizzles.CU_TENSOR_MAP_SWIZZLE_32B,
        }[box_columns * size],
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if int(status):
        raise EngineFault(f"A ({rows}, {columns}) matrix has no tensor map ({status.name}).")
    return ctypes.string_at(int(encoded.getPtr()), 128)
