"""Words and lanes: every operation on sixteen values is NumPy's on each of them."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.kernels.simd import lanes, memory, words
from llmrs_cli.kernels.simd.lanes import LANES

Words = NDArray[np.uint32]
FACTOR = 0xCD9E8D57
NAN, INFINITY = np.float32(np.nan), np.float32(np.inf)


@pytest.fixture
def some() -> Words:
    """Words of every kind: small, large, and those at which signs and carries turn."""
    found = np.random.default_rng(1).integers(0, 2**32, LANES, np.uint32)
    found[:6] = 0, 1, 2**31 - 1, 2**31, 2**32 - 1, 0xFFFF
    return found


def put(out, row, value):  # type: ignore[no-untyped-def]
    memory.store(out, row * LANES, words.from_bits(value))


put_words: Any = numba.njit(put)


def integer_arithmetic(x, y, out):  # type: ignore[no-untyped-def]
    a, b = words.bits(memory.load(x, 0)), words.bits(memory.load(y, 0))
    put_words(out, 0, a + b)
    put_words(out, 1, a - b)
    put_words(out, 2, a ^ b)
    put_words(out, 3, a & b)
    put_words(out, 4, words.product_low(a, FACTOR))
    put_words(out, 5, words.product_high(a, FACTOR))
    put_words(out, 6, words.shift_left(a, 5))
    put_words(out, 7, words.shift_right(a, 5))
    put_words(out, 8, words.shift_signed(a, 5))
    put_words(out, 9, words.where_equal(a, b, a, words.splat_word(7)))
    put_words(out, 10, words.count_up(2**32 - 3))


def test_integers_wrap_as_numpy_s_do(some: Words) -> None:
    other = some[::-1].copy()
    other[8:10] = some[8:10]
    out = np.zeros((11, LANES), np.float32)
    loop: Any = numba.njit(integer_arithmetic)
    loop(some.view(np.float32), other.view(np.float32), out)
    product = some.astype(np.uint64) * FACTOR
    wanted = [
        some + other,
        some - other,
        some ^ other,
        some & other,
        product & 0xFFFFFFFF,
        product >> 32,
        some << 5,
        some >> 5,
        (some.view(np.int32) >> 5).view(np.uint32),
        np.where(some == other, some, 7),
        (np.arange(LANES, dtype=np.uint64) + (2**32 - 3)) & 0xFFFFFFFF,
    ]
    for got, row in zip(out.view(np.uint32), wanted, strict=True):
        assert np.array_equal(got, row)


def conversions(x, out):  # type: ignore[no-untyped-def]
    a = words.bits(memory.load(x, 0))
    memory.store(out, 0, words.from_unsigned(a))
    memory.store(out, LANES, words.from_signed(a))


def test_integers_become_floats_with_and_without_their_sign(some: Words) -> None:
    out = np.zeros((2, LANES), np.float32)
    loop: Any = numba.njit(conversions)
    loop(some.view(np.float32), out)
    assert np.array_equal(out[0], some.astype(np.float32))
    assert np.array_equal(out[1], some.view(np.int32).astype(np.float32))


def float_arithmetic(x, y, out):  # type: ignore[no-untyped-def]
    a, b = memory.load(x, 0), memory.load(y, 0)
    memory.store(out, 0, a + b)
    memory.store(out, LANES, a - b)
    memory.store(out, 2 * LANES, a * b)
    memory.store(out, 3 * LANES, a / b)
    memory.store(out, 4 * LANES, lanes.maximum(a, b))
    memory.store(out, 5 * LANES, words.where_below(a, b, a, lanes.splat(np.float32(9))))


def test_floats_are_rounded_once_an_operation_and_pass_nan_on() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((2, LANES)).astype(np.float32) * 1e3
    x[:4], y[:4] = (NAN, 1, INFINITY, -INFINITY), (1, NAN, 2, 2)
    out = np.zeros((6, LANES), np.float32)
    loop: Any = numba.njit(error_model="numpy")(float_arithmetic)
    loop(x, y, out)
    for got, wanted in zip(out[:4], (x + y, x - y, x * y, x / y), strict=True):
        assert np.array_equal(got, wanted, equal_nan=True)
    assert out[4, 0] == 1 and np.isnan(out[4, 1]), "the second one where the first is NaN"
    assert np.array_equal(out[4, 2:], np.maximum(x, y)[2:])
    assert np.array_equal(out[5], np.where(x < y, x, 9))


def every_is_below(x, y):  # type: ignore[no-untyped-def]
    return words.all_below(memory.load(x, 0), memory.load(y, 0))


def test_all_are_below_only_if_each_is_and_none_is_nan() -> None:
    loop: Any = numba.njit(every_is_below)
    low, high = np.zeros(LANES, np.float32), np.ones(LANES, np.float32)
    assert loop(low, high)
    for lane in range(LANES):
        for value in (NAN, np.float32(1), INFINITY):
            changed = low.copy()
            changed[lane] = value
            assert not loop(changed, high)


def codes_of(x, out):  # type: ignore[no-untyped-def]
    word = memory.load_words(x, 0)
    memory.store(out, 0, lanes.nibble(word, 0))
    memory.store(out, LANES, lanes.nibble(word, 3))
    memory.store(out, 2 * LANES, lanes.nibble(word, 5))
    memory.store(out, 3 * LANES, lanes.nibble(word, 7))


def test_a_code_is_a_sixteenth_above_one(some: Words) -> None:
    out = np.zeros((4, LANES), np.float32)
    loop: Any = numba.njit(codes_of)
    loop(some.view(np.uint8), out)
    for got, position in zip(out, (0, 3, 5, 7), strict=True):
        assert np.array_equal(got, 1 + ((some >> (4 * position)) & 15) / np.float32(16))


def powers(x, out):  # type: ignore[no-untyped-def]
    memory.store(out, 0, lanes.power_of_two(memory.load(x, 0) + lanes.splat(np.float32(1.5 * 2**23))))


def test_powers_of_two_are_exact_over_all_normal_exponents() -> None:
    loop: Any = numba.njit(powers)
    for first in range(-126, 127, LANES):
        exponents = np.minimum(np.arange(first, first + LANES), 127).astype(np.float32)
        out = np.zeros(LANES, np.float32)
        loop(exponents, out)
        assert np.array_equal(out, np.exp2(exponents.astype(np.float64)).astype(np.float32))
