"""Numba loops of the CPU backend: explicit SIMD, packed weights, paged attention, sampling."""
