"""Random weights in each canonical form, for tests of linear layers and of whole decoders."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from llmrs_cli.engine.weights.packed import Dense, Packed4, Packed8, Permuted4, Words4, f32_to_bf16


def dense(
    rng: np.random.Generator, rows: int, columns: int, deviation: float = 1.0, dtype: str = "float32"
) -> Dense:
    """(N, K) normal values in float32, float16 or bfloat16."""
    values = (rng.standard_normal((rows, columns)) * deviation).astype(np.float32)
    if dtype == "bfloat16":
        return Dense(f32_to_bf16(values))
    return Dense(values.astype(dtype))


def packed4(rng: np.random.Generator, rows: int, columns: int, group: int, offsets: bool = False) -> Packed4:
    """(N, K) random codes; weights of about 1/√K, zeros 0…16 (or float offsets, as GGUF's Q4_1)."""
    groups = -(-columns // group)
    scales = (rng.uniform(0.5, 1.5, (rows, groups)) / (4.5 * columns**0.5)).astype(np.float16)
    return Packed4(
        codes=rng.integers(0, 256, (rows, -(-columns // 2)), np.uint8),
        scales=scales,
        zeros=None if offsets else rng.integers(0, 17, (rows, groups)).astype(np.uint8),
        offsets=(-7.5 * scales).astype(np.float16) if offsets else None,
        group=group,
        columns=columns,
    )


def permuted4(rng: np.random.Generator, rows: int, columns: int, group: int, order: int = 0) -> Permuted4:
    """(N, K) random codes whose columns are in a random order, the same for equal `order`."""
    inputs = np.random.default_rng(order).permutation(columns).astype(np.int32)
    return Permuted4(packed4(rng, rows, columns, group), inputs)


def packed8(rng: np.random.Generator, rows: int, columns: int, group: int = 32) -> Packed8:
    """(N, K) random signed codes; weights of about 1/√K."""
    scales = rng.uniform(0.5, 1.5, (rows, -(-columns // group))) / (73 * columns**0.5)
    return Packed8(rng.integers(-127, 128, (rows, columns)).astype(np.int8), scales.astype(np.float16), group)


def words4(
    rng: np.random.Generator,
    kind: Literal["awq", "gptq"],
    rows: int,
    columns: int,
    group: int,
    dtype: type[np.floating[Any]] = np.float16,
) -> Words4:
    """(N, K) random words as a file holds them, N and K multiples of 8; GPTQ's zeros are stored less one."""
    groups = -(-columns // group)
    shape = (columns, rows // 8) if kind == "awq" else (columns // 8, rows)
    codes, zeros = (rng.integers(0, 2**32, size, np.uint32) for size in (shape, (groups, rows // 8)))
    scales: Any = (rng.uniform(0.5, 1.5, (groups, rows)) / (4.5 * columns**0.5)).astype(dtype)
    return Words4(kind, codes, scales, zeros, group, less_one=kind == "gptq")
