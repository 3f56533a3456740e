"""Weights on their way to a GPU: through two pinned buffers, so that the host fills one while the other travels.

Threads fill a buffer together, because one core copies slower than the bus carries. Everything runs on a stream
of its own, and so does whoever allocates what is written (`with upload.stream`): a stream's memory is not given to
another one that might still be at work in it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cupy as cp
import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.backends.cuda_memory import PinnedRing

PIECE = 32 << 20
"""Bytes of a buffer."""
SHARE = 4 << 20
"""Bytes that a thread copies at a time."""
THREADS = 8
HOST_TO_DEVICE = 1


class Upload:
    """For one thread; buffers and threads are made when the first byte comes and given up by `close`."""

    def __init__(self, piece: int = PIECE, share: int = SHARE) -> None:
        self.stream = cp.cuda.Stream(non_blocking=True)
        self._piece, self._share = piece, share
        self._ring: PinnedRing | None = None
        self._pool: ThreadPoolExecutor | None = None

    def put(self, target: Any, values: NDArray[Any]) -> None:
        """Enqueue the copy of contiguous `values` to `target`, a contiguous array of as many bytes."""
        source = values.reshape(-1).view(np.uint8)
        assert target.nbytes == source.size and target.flags.c_contiguous, (target.shape, values.shape)
        if self._ring is None:
            self._ring = PinnedRing(self._piece, depth=2)
        with self.stream:
            for first in range(0, source.size, self._piece):
                piece = source[first : first + self._piece]
                index, memory = self._ring.take()
                self._fill(np.frombuffer(memory, np.uint8, piece.size), piece)
                cp.cuda.runtime.memcpyAsync(
                    target.data.ptr + first, memory.ptr, piece.size, HOST_TO_DEVICE, self.stream.ptr
                )
                self._ring.used(index)

    def close(self) -> None:
        """Wait for everything that is under way, and give up buffers and threads."""
        self.stream.synchronize()
        self._ring = None
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def _fill(self, target: NDArray[np.uint8], source: NDArray[np.uint8]) -> None:
        if source.size <= self._share:
            target[:] = source
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="llmrs-upload")
        parts = [slice(first, first + self._share) for first in range(0, source.size, self._share)]
        list(self._pool.map(lambda part: np.copyto(target[part], source[part]), parts))
