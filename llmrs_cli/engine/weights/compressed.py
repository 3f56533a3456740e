"""compressed-tensors checkpoints, format "pack-quantized" with 4 bits → canonical 4-bit codes.

    weight_packed      int32 (N, ceil(K/8))       eight codes a word, along K, in natural order
    weight_scale       float (N, K/G)
    weight_zero_point  int32 (ceil(N/8), K/G)     only if asymmetric: zeros, along N, in natural order
    weight_shape       int (2)                    N and K

Codes and zeros are signed values plus 8, so the weight is (code - zero) · scale, with zero 8 where none
is stored. Layout as written by vllm-project/compressed-tensors (pack_quantized compressor).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import Packed4
from llmrs_cli.engine.weights.words import nibbles_along_outputs

Words = NDArray[np.int32]


def compressed_weight(
    packed: Words, scales: NDArray[Any], zeros: Words | None, group: int, columns: int
) -> Packed4:
    """Canonical form of one layer of K = `columns` inputs; `scales` is (N, K/G) float16 or float32."""
    outputs = packed.shape[0]
    return Packed4(
        codes=np.ascontiguousarray(packed.view(np.uint8)[:, : (columns + 1) // 2]),
        scales=scales,
        zeros=np.full(scales.shape, 8, np.uint8) if zeros is None else _zeros(zeros)[:outputs],
        offsets=None,
        group=group,
        columns=columns,
    )


def _zeros(words: Words) -> NDArray[np.uint8]:
    """(ceil(N/8), K/G) words → (8 · ceil(N/8), K/G)."""
    return np.ascontiguousarray(nibbles_along_outputs(words.view(np.uint32).T).T)
