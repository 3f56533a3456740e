"""The engine's process with a switch that breaks its device: SIGUSR2 writes where nothing is.

    python -m benchmarks.faulty_engine READ_FD WRITE_FD

On a GPU a kernel stores to an address that nobody has, after which no call of the device succeeds; without one
the process reads such an address and dies of it.
"""

from __future__ import annotations

import ctypes
import signal

from llmrs_cli.server import child

KERNEL = 'extern "C" __global__ void strike() { *(volatile int*)16 = 1; }'


def strike(number: int, frame: object) -> None:
    try:
        import cupy
    except ImportError:
        ctypes.string_at(16)
    else:
        cupy.RawKernel(KERNEL, "strike")((1,), (1,), ())


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, strike)
    child.main()
