"""The machine that the loops are compiled for, as LLVM sees it."""

from __future__ import annotations

import os

from llvmlite import binding

WIDE_NAMES = ("avx512", "icelake", "sapphire", "granite", "znver4", "znver5")


def cpu_name() -> str:
    """NUMBA_CPU_NAME and NUMBA_CPU_FEATURES where they are set, else this machine."""
    name = os.environ.get("NUMBA_CPU_NAME") or binding.get_host_cpu_name()
    return f"{name} {os.environ.get('NUMBA_CPU_FEATURES', '')}".strip()


def has_wide_registers() -> bool:
    """Thirty-two registers of sixteen lanes (AVX-512)."""
    features = os.environ.get("NUMBA_CPU_FEATURES")
    if features is not None:
        return "+avx512f" in features
    named = os.environ.get("NUMBA_CPU_NAME", "host")
    if named != "host":
        return any(part in named for part in WIDE_NAMES)
    return bool(binding.get_host_cpu_features().get("avx512f"))


GEMM_ROWS = 12 if has_wide_registers() else 3
"""Rows of a matrix product's tile: two vectors of sums a row, two of weights and a broadcast fit the registers."""

ATTENTION_ROWS = 12 if has_wide_registers() else 4
"""Rows of attention's larger tile, which holds two vectors a row."""
