"""Where Hopper's copy engine finds a matrix: the 128 bytes that a kernel takes by value.

A map describes (rows, columns) of 16-bit values and boxes of 64 columns by some rows, which arrive in shared memory
128 bytes a row, swizzled as wgmma reads them; what lies outside of the matrix arrives as zeros.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

from llmrs_cli.errors import EngineFault

COLUMNS = 64
"""Of a box: 128 bytes, the width of the swizzle."""
MAX_ROWS = 256
"""Of a box."""


def tensor_map(matrix: Any, rows: int) -> bytes:
    """The map of `matrix` (R, C) 16-bit, contiguous, C a multiple of 8, with boxes of `rows` rows."""
    return _encoded(int(matrix.data.ptr), *matrix.shape, rows)


@lru_cache(maxsize=4096)
def _encoded(address: int, rows: int, columns: int, box: int) -> bytes:
    from cuda.bindings import driver

    whole, steps, one = driver.cuuint64_t, driver.cuuint32_t, driver.cuuint32_t(1)
    status, encoded = driver.cuTensorMapEncodeTiled(
        driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT16,
        2,
        address,
        [whole(columns), whole(rows)],
        [whole(columns * 2)],
        [steps(COLUMNS), steps(box)],
        [one, one],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if int(status):
        raise EngineFault(f"A ({rows}, {columns}) matrix has no tensor map ({status.name}).")
    return ctypes.string_at(int(encoded.getPtr()), 128)
