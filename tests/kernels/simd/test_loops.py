"""The small loops: sixteen at a time they give what NumPy gives, at the edges and for numbers that are none."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine.backends import reference_random
from llmrs_cli.kernels.simd import elementwise, lanes, memory, noise, words
from llmrs_cli.kernels.simd.keep import cut, order_key

Values = NDArray[np.float32]
NONE = np.float32(-np.inf)


def over(x, out, loop):  # type: ignore[no-untyped-def]
    """out = loop(x), sixteen at a time."""
    for i in range(0, x.size, 16):
        memory.store(out, i, loop(memory.load(x, i)))


def mapped(loop: Any, values: Values) -> Values:
    """A loop of lanes over an array, which is padded to whole vectors."""
    padded = np.resize(values, -(-len(values) // 16) * 16).astype(np.float32)
    out = np.empty_like(padded)
    numba.njit(error_model="numpy")(over)(padded, out, loop)
    return out[: len(values)]


def test_exp_is_exact_to_two_roundings_from_end_to_end() -> None:
    x = np.concatenate([np.linspace(-87, 88, 4096), np.linspace(-1e-3, 1e-3, 64)]).astype(np.float32)
    wanted = np.exp(x.astype(np.float64))
    assert np.max(np.abs(mapped(elementwise.exp_lanes, x) / wanted - 1)) < 2e-7


def test_exp_is_held_at_its_ends_and_nan_stays() -> None:
    got = mapped(elementwise.exp_lanes, np.array([-1000, -np.inf, 1000, np.inf, np.nan], np.float32))
    assert 0 <= got[0] < 2e-38 and 0 <= got[1] < 2e-38
    assert np.isfinite(got[2:4]).all() and (got[2:4] > 1e38).all()
    assert np.isnan(got[4])


def random_words(seed: int, count: int) -> NDArray[np.uint32]:
    found = np.random.default_rng(seed).integers(0, 2**32, count).astype(np.uint32)
    found[:4] = 0, 2**32 - 1, 1, 2**31
    return found


def gumbel_of_bits(x):  # type: ignore[no-untyped-def]
    return noise.gumbel(words.bits(x))


def test_gumbel_noise_is_the_definition_s_to_the_bit() -> None:
    x = random_words(1, 4096)
    inner = numba.njit(gumbel_of_bits)
    assert np.array_equal(mapped(inner, x.view(np.float32)), reference_random.gumbel(x))


def test_masses_are_the_definition_s_to_the_unit() -> None:
    d = -np.abs(np.random.default_rng(2).standard_normal(4096) * 9).astype(np.float32)
    d[:6] = 0, -np.inf, -23, np.nextafter(np.float32(-23), NONE), -22.2, -1e-9
    got = mapped(noise.mass, d)
    assert np.array_equal(got.astype(np.uint64), reference_random.mass(d))


def draw_words(out, low, high, position, choice):  # type: ignore[no-untyped-def]
    for first in range(0, out.size, 16):
        found = noise.random_words(words.count_up(first), low, high, position, choice)
        memory.store(out, first, words.from_bits(found))


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**64 - 1, 0x0123456789ABCDEF])
def test_random_words_are_philox_s(seed: int) -> None:
    out = np.empty(1008, np.float32)
    loop: Any = numba.njit(draw_words)
    loop(out, seed & 0xFFFFFFFF, seed >> 32, 77, 3)
    assert np.array_equal(
        out.view(np.uint32), reference_random.words(seed, 77, 3, np.arange(1008, dtype=np.int32))
    )


def reduce_all(x, out):  # type: ignore[no-untyped-def]
    value = memory.load(x, 0)
    out[0] = lanes.sum_lanes(value)
    out[1] = lanes.max_lanes(value)
    out[2] = lanes.max_lanes(lanes.between(value, 3, 5, lanes.splat(np.float32(-9))))
    memory.store_first(out, 4, memory.load_first(x, 2, 3), 5)


def test_lanes_are_reduced_masked_and_stored_in_part() -> None:
    x = np.arange(16, dtype=np.float32) ** 2
    out = np.full(24, -1, np.float32)
    loop: Any = numba.njit(reduce_all)
    loop(x, out)
    assert out[:3].tolist() == [1240, 225, 16]
    assert out[3:11].tolist() == [-1, 4, 9, 16, 0, 0, -1, -1]


def norm_rows(x, weight, eps, out):  # type: ignore[no-untyped-def]
    elementwise.norm_row(x, 0, x.size, weight, eps, out, 0)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 33])
def test_a_norm_touches_its_row_alone(size: int) -> None:
    x = np.random.default_rng(3).standard_normal(size).astype(np.float32)
    out = np.full(size + 3, 5, np.float32)
    loop: Any = numba.njit(error_model="numpy")(norm_rows)
    loop(x, np.ones(size, np.float32), 1e-6, out)
    wide = x.astype(np.float64)
    assert np.allclose(out[:size], wide / np.sqrt(np.mean(wide**2) + 1e-6), rtol=1e-6)
    assert (out[size:] == 5).all()


# -- cutting candidates -----------------------------------------------------------------------------------


def keys_of(patterns, out):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = order_key(np.int64(patterns[i]))


def test_keys_grow_with_scores() -> None:
    scores = np.array([-np.inf, -3e38, -1.5, -1e-40, -0.0, 0.0, 1e-40, 2, 3e38, np.inf], np.float32)
    out = np.empty(len(scores), np.int64)
    loop: Any = numba.njit(keys_of)
    loop(scores.view(np.uint32), out)
    steps = np.diff(out)
    assert (steps[[0, 1, 2, 3, 5, 6, 7, 8]] > 0).all() and steps[4] == 0


def cut_copy(ids, scores, masses, keys, by_mass, limit):  # type: ignore[no-untyped-def]
    return cut(ids, scores, masses, ids.size, keys, by_mass, limit)


@pytest.fixture(scope="module")
def kept() -> Any:
    """(scores, masses or None, limit) → ids that are kept."""
    loop: Any = numba.njit(error_model="numpy")(cut_copy)

    def call(scores: Values, masses: Values | None, limit: float) -> list[int]:
        ids, weights = np.arange(len(scores), dtype=np.int32), scores if masses is None else masses
        keys = np.empty(len(scores), np.int64)
        count = loop(ids, scores.copy(), weights.copy(), keys, masses is not None, float(limit))
        return ids[:count].tolist()  # type: ignore[no-any-return]

    return call


@pytest.mark.parametrize("kind", ["plain", "ties", "flat"])
def test_a_cut_is_a_prefix_of_the_sorted_candidates(kept: Any, kind: str) -> None:
    rng = np.random.default_rng(4)
    for size in (1, 2, 40, 3000):
        scores = rng.standard_normal(size).astype(np.float32) * 8
        scores = {"plain": scores, "ties": np.round(scores), "flat": np.zeros_like(scores)}[kind]
        order = np.argsort(-scores, kind="stable")
        for count in {1, size // 3 + 1, size}:
            assert kept(scores, None, count) == sorted(order[:count].tolist())
        masses = np.floor(np.exp(scores - scores.max()) * 2.0**32).astype(np.float32)
        sums = np.cumsum(masses[order].astype(np.uint64)).astype(np.float64)
        for share in (0.0, 0.3, 0.9, 1.0):
            count = int(np.searchsorted(sums, share * sums[-1])) + 1
            assert kept(scores, masses, share * sums[-1]) == sorted(order[:count].tolist())


def test_an_empty_limit_keeps_the_first_of_the_best(kept: Any) -> None:
    scores = np.array([1, 3, 2, 3], np.float32)
    assert kept(scores, scores, 0.0) == [1]
