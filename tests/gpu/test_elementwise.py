"""embed, rms_norm, silu_mul and rope_store against float64."""

from __future__ import annotations

import numpy as np
import pytest

from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.embed import embed
from llmrs_cli.kernels.rms_norm import rms_norm
from llmrs_cli.kernels.rope_store import MANY_TOKENS, rope_store
from llmrs_cli.kernels.silu_mul import headroom, silu_mul
from llmrs_cli.kernels.take_rows import take_rows
from tests.gpu.halves import TYPES, cp, error, halves, in_turns, rounding, widened


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize("c", [96, 3584])
def test_embedding_takes_rows(device: CudaDevice, bf16: bool, c: int) -> None:
    rng = np.random.default_rng(c)
    table, table64 = halves(rng.standard_normal((333, c)), bf16)
    ids = rng.integers(0, 333, 17).astype(np.int32)
    out = cp.ones((18, c), cp.float32)
    embed(device, bf16, table, cp.asarray(np.array([*ids, -1], np.int32)), out)
    assert (cp.asnumpy(out[:17]) == table64[ids]).all() and not out[17].any()


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize("c", [4, 96, 896, 3584, 4096, 4100, 8192])
def test_norm(device: CudaDevice, bf16: bool, c: int) -> None:
    rng = np.random.default_rng(c)
    x = rng.standard_normal((20, c)).astype(np.float32) * 7
    gamma = rng.standard_normal(c).astype(np.float32)
    out = cp.zeros((20, c), cp.uint16)
    rms_norm(device, bf16, cp.asarray(x), cp.asarray(gamma), 1e-5, out)
    x64 = x.astype(np.float64)
    wanted = x64 / np.sqrt((x64**2).mean(axis=1, keepdims=True) + 1e-5) * gamma
    assert error(widened(out, bf16), wanted) < rounding(bf16)


@pytest.mark.parametrize(("c", "w"), [(4, 8), (896, 896), (3584, 3584), (2048, 4096)])
def test_chosen_tokens_go_on(device: CudaDevice, c: int, w: int) -> None:
    rng = np.random.default_rng(c)
    residual = cp.asarray(rng.standard_normal((300, c)).astype(np.float32))
    mixed = cp.asarray(rng.integers(0, 1 << 16, (300, w), np.uint16))
    tokens = cp.asarray(np.sort(rng.permutation(300)[:70]).astype(np.int32))
    rows, attended = cp.zeros((71, c), cp.float32), cp.zeros((71, w), cp.uint16)
    take_rows(device, tokens, residual, mixed, rows[:70], attended[:70])
    assert (rows[:70] == residual[tokens]).all() and not rows[70].any()
    assert (attended[:70] == mixed[tokens]).all() and not attended[70].any()


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize("f", [32, 18944])
def test_gate(device: CudaDevice, bf16: bool, f: int) -> None:
    rng = np.random.default_rng(f)
    stacked = rng.standard_normal((5, 2 * f)) * 4
    gate, up = np.split(halves(stacked, bf16)[1], 2, axis=1)
    gate_up, _ = halves(np.ascontiguousarray(in_turns(stacked.T).T), bf16)
    out = cp.zeros((5, f), cp.uint16)
    silu_mul(device, bf16, gate_up, out)
    assert error(widened(out, bf16) / headroom(bf16), gate / (1 + np.exp(-gate)) * up) < rounding(bf16)


def rotations(rng: np.random.Generator, d: int) -> np.ndarray:
    """(50, D) cosines, then sines, of 50 positions."""
    angles = rng.uniform(0, 6, (50, d // 2))
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize("d", [16, 64, 96, 128, 256])
@pytest.mark.parametrize("normed", [True, False])
def test_rotation_and_store(device: CudaDevice, bf16: bool, d: int, normed: bool) -> None:
    rng = np.random.default_rng(d)
    tokens, heads, kv_heads, blocks = 9, 6, 2, 4
    qkv, wide = halves(rng.standard_normal((tokens, (heads + 2 * kv_heads) * d)), bf16)
    table = rotations(rng, d)
    positions = rng.integers(0, 50, tokens).astype(np.int32)
    slots = rng.permutation(blocks * 64)[:tokens].astype(np.int32)
    slots[4] = -1
    norms = [rng.standard_normal(d).astype(np.float32) if normed else None for _ in range(2)]
    gpu_norms = [None if norm is None else cp.asarray(norm) for norm in norms]
    q, attended = cp.zeros((tokens, heads, d), cp.uint16), cp.full((tokens, heads * d), 7, cp.uint16)
    keys, values = (cp.zeros((blocks, kv_heads, 64, d), cp.uint16) for _ in range(2))
    rope_store(
        device, bf16, qkv, cp.asarray(positions), cp.asarray(slots), cp.asarray(table),
        (gpu_norms[0], gpu_norms[1]), 1e-6, q, keys, values, None, attended,
    )  # fmt: skip
    assert not attended[4].any() and (attended[cp.arange(tokens) != 4] == 7).all()

    by_head = wide.reshape(tokens, -1, d)

    def turned(x: np.ndarray, norm: np.ndarray | None) -> np.ndarray:
        if norm is not None:
            x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * norm
        cos, sin = (part[positions][:, None] for part in np.split(table.astype(np.float64), 2, axis=1))
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    kept = slots >= 0
    assert error(widened(q, bf16)[kept], turned(by_head[:, :heads], norms[0])[kept]) < rounding(bf16)
    place = slots[kept] // 64, slice(None), slots[kept] % 64
    wanted = turned(by_head[:, heads : heads + kv_heads], norms[1])
    assert error(widened(keys, bf16)[place], wanted[kept]) < rounding(bf16)
    assert (widened(values, bf16)[place] == by_head[kept, heads + kv_heads :]).all()
    assert int((keys != 0).any(axis=-1).sum()) <= kept.sum() * kv_heads


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize("d", [64, 96, 128, 256])
@pytest.mark.parametrize("normed", [True, False])
def test_a_token_is_turned_to_the_same_bits_among_many_and_few(
    device: CudaDevice, bf16: bool, d: int, normed: bool
) -> None:
    """What fixed bits rest on: both kernels round the same sums."""
    rng = np.random.default_rng(d)
    tokens, few, heads, kv_heads = MANY_TOKENS + 5, 37, 4, 2
    qkv, _ = halves(rng.standard_normal((tokens, (heads + 2 * kv_heads) * d)), bf16)
    table = cp.asarray(rotations(rng, d))
    positions = cp.asarray(rng.integers(0, 50, tokens).astype(np.int32))
    slots = cp.arange(tokens, dtype=cp.int32)
    norms = [cp.asarray(rng.standard_normal(d).astype(np.float32)) if normed else None for _ in range(2)]

    def turn(count: int) -> list[np.ndarray]:
        q = cp.zeros((count, heads, d), cp.uint16)
        keys, values = (cp.zeros((-(-tokens // 64), kv_heads, 64, d), cp.uint16) for _ in range(2))
        rope_store(
            device, bf16, qkv[:count], positions[:count], slots[:count], table, (norms[0], norms[1]), 1e-6, q,
            keys, values,
        )  # fmt: skip
        lines = [cp.moveaxis(cache, 1, 2).reshape(-1, kv_heads, d) for cache in (keys, values)]
        return [cp.asnumpy(part[:few]) for part in (q, *lines)]

    for among_many, among_few in zip(turn(tokens), turn(few), strict=True):
        assert np.array_equal(among_many, among_few)
