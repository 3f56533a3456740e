"""A digest of an array that costs less than reading it: it finds accidents, and keeps no forger out.

SHA-256 of all bytes takes longer than a file takes to come out of the page cache. So every block of words is
first summed, each word times an odd factor of its own, and SHA-256 is taken of the sums. An odd factor loses
nothing of its word, so whatever changes in one word of a block changes its sum. Words that change places, and
damage to several, are missed about as often as 64 random bits are equal; blocks that change places, never.
Source of the sums: multilinear hashing (Carter and Wegman, 1979), modulo 2^64.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

WORD_BYTES = 8
BLOCK_WORDS = 4096
"""Words that are summed into one: their factors and two blocks stay in the cache."""
BLOCK_BYTES = WORD_BYTES * BLOCK_WORDS
_ODD = 0x9E3779B97F4A7C15
"""2^64 / golden ratio; factor j is its power j + 1."""


def digest(values: NDArray[Any]) -> str:
    """64 hexadecimal digits that change with the values' bytes as they lie in a file."""
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    whole = len(data) // BLOCK_BYTES * BLOCK_BYTES
    blocks = data[:whole].view("<u8").reshape(-1, BLOCK_WORDS)
    found = hashlib.sha256(np.einsum("ij,j->i", blocks, _factors()).astype("<u8").tobytes())
    found.update(data[whole:].data)
    return found.hexdigest()


def _factors() -> NDArray[np.uint64]:
    """(BLOCK_WORDS,): powers of an odd number, all odd, modulo 2^64."""
    return np.multiply.accumulate(np.full(BLOCK_WORDS, _ODD, np.uint64))
