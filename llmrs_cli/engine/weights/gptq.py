"""GPTQ checkpoints with 4 bits.

    qweight  int32 (K/8, N)      eight codes a word, along K, in natural order
    qzeros   int32 (K/G, N/8)    the zeros, along N, in natural order; less one in the first format
    scales   f16   (K/G, N)
    g_idx    int32 (K)           group of each input

The weight is (code - zero) · scale. The second format (`checkpoint_format: gptq_v2`) stores zeros as they
are. Layout as written by AutoGPTQ (auto_gptq/nn_modules/qlinear). Where inputs were quantised in the order
of their activations (`desc_act`: a g_idx that is not 0 0 … 1 1 …), columns are sorted by group, once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import Packed4, Permuted4, Words4
from llmrs_cli.errors import ModelError, quoted

Words = NDArray[np.int32]


def gptq_weight(
    qweight: Words, qzeros: Words, scales: NDArray[Any], group: int, *, stored_less_one: bool, name: str
) -> Words4:
    """One layer, its columns as they are stored; `name` appears in messages only."""
    weight = Words4("gptq", qweight.view(np.uint32), scales, qzeros.view(np.uint32), group, stored_less_one)
    if stored_less_one and (weight.plain_zeros() == 16).any():
        raise ModelError(
            f"{name} has a stored GPTQ zero point of 15, which public kernels read as 16 or as 0.",
            hint="Look for a symmetric or gptq_v2 version of the model.",
        )
    return weight


def in_groups(weight: Packed4 | Words4, g_idx: Words, name: str) -> Packed4 | Words4 | Permuted4:
    """`weight` with its columns sorted by group, if `g_idx` (K,) says that they are not.

    Files that make no use of g_idx hold -1 in all of it. Raises ModelError if a group has not its G inputs.
    """
    natural = np.arange(weight.columns) // weight.group
    if np.array_equal(g_idx, natural) or (g_idx == -1).all():
        return weight
    inputs = np.argsort(g_idx, kind="stable").astype(np.int32)
    if not np.array_equal(g_idx[inputs], natural):
        raise ModelError(
            f"{quoted(name, 120)} has a g_idx whose groups do not have {weight.group} inputs each.",
            hint="The file may be damaged.",
        )
    plain = weight.canonical() if isinstance(weight, Words4) else weight
    return Permuted4(replace(plain, codes=_take_columns(plain.codes, inputs)), inputs)


def _take_columns(codes: NDArray[np.uint8], inputs: NDArray[np.int32]) -> NDArray[np.uint8]:
    """(N, ceil(K/2)) bytes of two codes with their K columns in another order."""
    out = np.zeros_like(codes)
    for half, shift in ((0, 0), (1, 4)):
        source = inputs[half::2]
        found = codes[:, source >> 1]
        found >>= ((source & 1) << 2).astype(np.uint8)
        found &= 15
        out[:, : len(source)] |= found << shift
    return out
