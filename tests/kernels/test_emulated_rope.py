"""Norm, rotation and store of a step's tokens, run on the CPU from their CUDA source, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import bf16_to_f32, f32_to_bf16
from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.rope_store import MANY_TOKENS, rope_store
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


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("d", [32, 64, 96, 128, 256])
def test_a_token_is_turned_the_same_among_many_and_alone(gpu: EmulatedDevice, d: int, normed: bool) -> None:
    rng = np.random.default_rng(d)
    heads, kv_heads, tokens, chosen = (
        2,
        1,
        MANY_TOKENS + 3,
        np.array([0, 1, 300, MANY_TOKENS, MANY_TOKENS + 2]),
    )
    qkv = f32_to_bf16(rng.standard_normal((tokens, (heads + 2 * kv_heads) * d)).astype(np.float32))
    table = rng.standard_normal((40, d)).astype(np.float32)
    norms = (
        [host(norm) for norm in rng.uniform(0.5, 2, (2, d)).astype(np.float32)] if normed else [None, None]
    )
    positions, slots = (
        rng.integers(0, 40, tokens).astype(np.int32),
        rng.permutation(640)[:tokens].astype(np.int32),
    )
    slots[[17, MANY_TOKENS]] = -1

    def turn(of: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        q = host(np.full((len(of), heads, d), UNTOUCHED, np.uint16))
        attended = host(np.full((len(of), heads * d), UNTOUCHED, np.uint16))
        keys, values = (host(np.full((10, kv_heads, 64, d), UNTOUCHED, np.uint16)) for _ in range(2))
        rope_store(
            gpu, True, host(qkv[of]), host(positions[of]), host(slots[of]), host(table), (norms[0], norms[1]), EPS,
            q, keys, values, None, attended,
        )  # fmt: skip
        return tuple(np.asarray(array) for array in (q, attended, keys, values))

    many, few = turn(np.arange(tokens)), turn(chosen)
    for whole, alone in zip(many[:2], few[:2], strict=True):
        assert np.array_equal(whole[chosen], alone)
    stored = slots[chosen][slots[chosen] >= 0]
    for whole, alone in zip(many[2:], few[2:], strict=True):
        lines, own = whole.reshape(-1, d), alone.reshape(-1, d)
        assert np.array_equal(lines[stored], own[stored])
        assert (lines[slots[slots >= 0]] != UNTOUCHED).any(axis=1).all()
        assert (np.delete(lines, slots[slots >= 0], axis=0) == UNTOUCHED).all()


def test_heads_that_no_group_of_lanes_can_hold_are_refused(gpu: EmulatedDevice) -> None:
    for d in (36, 264):
        empty = host(np.zeros((1, 3, d), np.uint16))
        with pytest.raises(EngineFault, match=f"heads of {d} values"):
            rope_store(gpu, True, empty, empty, empty, empty, (None, None), EPS, empty, empty, empty)
