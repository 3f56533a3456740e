"""Device and SIMD kernels with their launchers; no engine logic."""
