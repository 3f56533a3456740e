"""GPTQ checkpoints with 4 bits → canonical 4-bit codes.

    qweight  int32 (K/8, N)      eight codes a word, along K, in natural order
    qzeros   int32 (K/G, N/8)    the zeros, along N, in natural order; less one in the first format
    scales   f16   (K/G, N)
    g_idx    int32 (K)           group of each input

The weight is (code - zero) · scale. The second format (`checkpoint_format: gptq_v2`) stores zeros as they
are. Layout as written by AutoGPTQ (auto_gptq/nn_modules/qlinear). Inputs in activation order (a g_idx
that is not 0 0 … 1 1 …) are refused: a group would have no place in memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import Packed4
from llmrs_cli.errors import ModelError

Words = NDArray[np.int32]


def gptq_weight(
    qweight: Words, qzeros: Words, scales: NDArray[Any], group: int, *, stored_less_one: bool, name: str
) -> Packed4:
    """Canonical form of one layer; `name` appears in messages only."""
    zeros = nibbles_along_outputs(qzeros)
    if stored_less_one:
        if (zeros == 15).any():
            raise ModelError(
                f"{name} has a stored GPTQ zero point of 15, which public kernels read as 16 or as 0.",
                hint="Look for a symmetric or gptq_v2 version of the model.",
            )
        zeros += 1
    return Packed4(
        codes=np.ascontiguousarray(qweight.T).view(np.uint8),
        scales=np.ascontiguousarray(scales.T),
        zeros=zeros,
        offsets=None,
        group=group,
        columns=qweight.shape[0] * 8,
    )


def nibbles_along_outputs(words: Words) -> NDArray[np.uint8]:
    """(K/G, N/8) words → (N, K/G), one value a byte."""
    groups, width = words.shape
    pairs = np.ascontiguousarray(words.T).view(np.uint8).reshape(width, groups, 4)
    out = np.empty((width, 8, groups), np.uint8)
    out[:, 0::2] = (pairs & 15).transpose(0, 2, 1)
    out[:, 1::2] = (pairs >> 4).transpose(0, 2, 1)
    return out.reshape(8 * width, groups)


def check_order(g_idx: Words, group: int, name: str) -> None:
    """Raise ModelError if the inputs are not in their natural order."""
    if not np.array_equal(g_idx, np.arange(len(g_idx)) // group):
        raise ModelError(
            f"{name} is quantised in activation order (desc_act), which we do not run.",
            hint="Look for a version of the model that was quantised without desc_act.",
        )
