"""How the loops are compiled: as inner ones, which only other loops call, or as entries from Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

njit: Any = numba.njit


def inner(function: Callable[..., Any]) -> Any:
    """A loop for other loops: no wrappers for Python and C, which would take half of its compile time."""
    return njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy")(function)


def unlocked(function: Callable[..., Any]) -> Any:
    """A loop that Python calls and that leaves Python's lock to other threads meanwhile."""
    return njit(no_cfunc_wrapper=True, error_model="numpy", nogil=True)(function)


def entry(function: Callable[..., Any]) -> Any:
    """A loop that Python calls."""
    return njit(no_cfunc_wrapper=True, error_model="numpy")(function)
