"""AWQ checkpoints of the kinds "gemm" and "gemv".

For a linear layer with K inputs, N outputs and groups of G inputs, "gemm":

    qweight  int32 (K, N/8)      eight 4-bit codes a word, along N
    qzeros   int32 (K/G, N/8)    the zeros, in the same order
    scales   f16   (K/G, N)      in natural order

Nibble i of word c belongs to output 8c + AWQ_ORDER[i]: even outputs first, then odd ones. And "gemv":

    qweight  int32 (N, K/8)      eight codes a word, along K, in natural order
    qzeros   int32 (N, Z)        the zeros, along K/G, in natural order, Z ≥ K/G/8: rows are padded
    scales   f16   (N, 8·Z)

The weight is (code - zero) · scale. Layouts as written by AutoAWQ (casper-hansen/AutoAWQ,
awq/modules/linear/gemm.py and gemv.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import Packed4, Words4

Words = NDArray[np.int32]


def awq_weight(qweight: Words, qzeros: Words, scales: NDArray[Any], group: int) -> Words4:
    """One layer of the kind "gemm"; `group` is G, already resolved to K where the file says -1.

    `scales` is (K/G, N) float16 or float32.
    """
    return Words4("awq", qweight.view(np.uint32), scales, qzeros.view(np.uint32), group)


def awq_rows_weight(qweight: Words, qzeros: Words, scales: NDArray[Any], group: int) -> Packed4:
    """Canonical form of one layer of the kind "gemv"; `group` as above, `scales` (N, 8·Z)."""
    outputs, width = qweight.shape
    groups = -(-8 * width // group)
    pairs = np.ascontiguousarray(qzeros).view(np.uint8)
    zeros = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(outputs, -1)
    return Packed4(
        codes=np.ascontiguousarray(qweight).view(np.uint8),
        scales=np.ascontiguousarray(scales[:, :groups]),
        zeros=np.ascontiguousarray(zeros[:, :groups]),
        offsets=None,
        group=group,
        columns=8 * width,
    )
