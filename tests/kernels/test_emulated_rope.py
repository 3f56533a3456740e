"""Norm, rotation and store of a step's tokens, run on the CPU from their CUDA source, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import bf16_to_f32, f32_to_bf16
from llmrs_cli.kernels.rope_store import rope_store
from tests.helpers.emulate import EmulatedDevice, host

HEADS, KV_HEADS, D, EPS = 3, 1, 96, 1e-5
SLOTS = (5, 64, 70, 71, 72, 130, -1)
"""Two sequences that decode, a prompt of three tokens, one more that decodes, a token of padding."""
POSITIONS = (5, 0, 6, 7, 8, 2, 0)
FIRST_TILE = (0, 0, 0, 1, 1, 1)
UNTOUCHED = 0x7FC0
Floats = NDArray[np.float64]


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> EmulatedDevice:
    return EmulatedDevice(tmp_path_factory.mktemp("emulated"))


def wide(bits: NDArray[Any]) -> Floats:
    return bf16_to_f32(np.asarray(bits)).astype(np.float64)


def turned(heads: Floats, table: Floats, norm: Floats | None) -> Floats:
    """(T, H, D) as they are read by attention."""
    if norm is not None:
        heads = heads / np.sqrt((heads**2).mean(axis=-1, keepdims=True) + EPS) * norm
    cosine, sine = np.split(table[list(POSITIONS)][:, None], 2, axis=-1)
    a, b = np.split(heads, 2, axis=-1)
    return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], axis=-1)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("first_tile", [None, FIRST_TILE])
def test_all_tokens_are_turned_but_those_that_decode_before_the_first_prompt(
    gpu: EmulatedDevice, normed: bool, first_tile: tuple[int, ...] | None
) -> None:
    rng = np.random.default_rng(normed)
    tokens, width = len(SLOTS), (HEADS + 2 * KV_HEADS) * D
    qkv = f32_to_bf16(rng.standard_normal((tokens, width)).astype(np.float32))
    table = rng.standard_normal((9, D)).astype(np.float32)
    norms = rng.uniform(0.5, 2, (2, D)).astype(np.float32)
    q = host(np.full((tokens, HEADS, D), UNTOUCHED, np.uint16))
    attended = host(np.full((tokens, HEADS * D), UNTOUCHED, np.uint16))
    keys, values = (host(np.full((3, KV_HEADS, 64, D), UNTOUCHED, np.uint16)) for _ in range(2))
    rope_store(
        gpu, True, host(qkv), host(np.array(POSITIONS, np.int32)), host(np.array(SLOTS, np.int32)), host(table),
        (host(norms[0]), host(norms[1])) if normed else (None, None), EPS, q, keys, values,
        None if first_tile is None else host(np.array(first_tile, np.int32)), attended,
    )  # fmt: skip
    first = 0 if first_tile is None else 2
    real = np.array(SLOTS) >= 0
    assert (np.asarray(attended)[real] == UNTOUCHED).all() and not np.asarray(attended)[~real].any()
    parts = wide(qkv).reshape(tokens, -1, D)
    wanted_q = turned(parts[:, :HEADS], table.astype(np.float64), norms[0] if normed else None)
    wanted_k = turned(parts[:, HEADS:-1], table.astype(np.float64), norms[1] if normed else None)
    chosen = real & (np.arange(tokens) >= first)
    assert np.allclose(wide(q)[chosen], wanted_q[chosen], rtol=8e-3, atol=8e-3)
    assert (np.asarray(q)[~chosen] == UNTOUCHED).all()
    stored = [slot for slot in SLOTS[first:] if slot >= 0]
    for cache, wanted in ((keys, wanted_k[:, 0]), (values, parts[:, -1])):
        lines = np.asarray(cache).reshape(-1, D)
        assert np.allclose(wide(lines[stored]), wanted[first : first + len(stored)], rtol=8e-3, atol=8e-3)
        assert (np.delete(lines, stored, axis=0) == UNTOUCHED).all()
