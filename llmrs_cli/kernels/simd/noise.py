# mypy: allow-untyped-defs
"""The sampler's random bits, Gumbel noise and probability masses, sixteen at a time.

`engine.backends.reference_random` is the definition; this gives the same bits. Nothing here is fused:
each operation rounds on its own.
"""

from __future__ import annotations

import numpy as np

from llmrs_cli.kernels.simd.compiling import inner
from llmrs_cli.kernels.simd.lanes import maximum, power_of_two, splat
from llmrs_cli.kernels.simd.words import (
    bits,
    from_bits,
    from_signed,
    from_unsigned,
    product_high,
    product_low,
    shift_left,
    shift_right,
    shift_signed,
    splat_word,
    where_below,
    where_equal,
)

ROUNDS = 10
FIRST_FACTOR, SECOND_FACTOR = 0xD2511F53, 0xCD9E8D57
FIRST_STEP, SECOND_STEP = 0x9E3779B9, 0xBB67AE85

ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)
BELOW_ONE = np.float32(1.0 - 2.0**-24)
TO_UNIT = np.float32(2.0**-32)
SERIES_BELOW = np.float32(0.25)
SQRT_HALF = 0x3F3504F3
LN2_HIGH, LN2_LOW = np.float32(0.693145751953125), np.float32(1.428606765330187e-06)
LOG2_E = np.float32(1.4426950216293335)
L0, L1, L2, L3, L4, L5, L6, L7 = (
    np.float32(value)
    for value in (
        0.3333333134651184,
        -0.2500081956386566,
        0.20001226663589478,
        -0.16623356938362122,
        0.14201757311820984,
        -0.13160182535648346,
        0.1276157796382904,
        -0.07634497433900833,
    )
)
E0, E1, E2, E3, E4 = (
    np.float32(value)
    for value in (
        0.4999999403953552,
        0.1666652113199234,
        0.04166838899254799,
        0.008368716575205326,
        0.001381459878757596,
    )
)
MASS_FLOOR = np.float32(-23)
MASS_ONE = np.float32(2.0**32)
ROUND = np.float32(1.5 * 2**23)
"""Adding it to a number under 2²² rounds to an integer, ties to even."""
WHOLE = np.float32(2**23)
"""From here on every float32 is an integer; adding it to less rounds likewise."""


@inner
def random_words(ids, low, high, position, choice):
    """One Philox4x32-10 word for each token id: word id mod 4 of group id div 4."""
    c0, c1 = splat_word(position), shift_right(ids, 2)
    c2, c3 = splat_word(choice), splat_word(0)
    for _ in range(ROUNDS):
        left_high, left_low = product_high(c0, FIRST_FACTOR), product_low(c0, FIRST_FACTOR)
        right_high, right_low = product_high(c2, SECOND_FACTOR), product_low(c2, SECOND_FACTOR)
        c0, c1 = right_high ^ c1 ^ splat_word(low), right_low
        c2, c3 = left_high ^ c3 ^ splat_word(high), left_low
        low += FIRST_STEP
        high += SECOND_STEP
    lane = ids & splat_word(3)
    upper = where_equal(lane, splat_word(2), c2, c3)
    lower = where_equal(lane, splat_word(0), c0, c1)
    return where_equal(lane & splat_word(2), splat_word(0), lower, upper)


@inner
def log1p_reduced(f, steps):
    """log(1 + f) + steps · ln 2."""
    p = splat(L7)
    p = p * f + splat(L6)
    p = p * f + splat(L5)
    p = p * f + splat(L4)
    p = p * f + splat(L3)
    p = p * f + splat(L2)
    p = p * f + splat(L1)
    p = p * f + splat(L0)
    z = f * f
    q = (f * p) * z
    q = q + steps * splat(LN2_LOW)
    q = q - splat(HALF) * z
    return (f + q) + steps * splat(LN2_HIGH)


@inner
def log(x):
    """Natural logarithm of positive normal numbers."""
    k = shift_signed(bits(x) - splat_word(SQRT_HALF), 23)
    reduced = from_bits(bits(x) - shift_left(k, 23))
    return log1p_reduced(reduced - splat(ONE), from_signed(k))


@inner
def gumbel(x):
    """Words → standard Gumbel variates."""
    v = (from_unsigned(x) + splat(HALF)) * splat(TO_UNIT)
    v = where_below(v, splat(BELOW_ONE), v, splat(BELOW_ONE))
    small = where_below(v, splat(SERIES_BELOW), splat(ZERO) - v, splat(ZERO))
    series = log1p_reduced(small, splat(ZERO))
    exponential = splat(ZERO) - where_below(v, splat(SERIES_BELOW), series, log(splat(ONE) - v))
    return splat(ZERO) - log(exponential)


@inner
def mass(d):
    """2³² · exp(d) rounded to an integer, as float32 (which holds it exactly), for d ≤ 0."""
    held = maximum(splat(MASS_FLOOR), d)
    shifted = held * splat(LOG2_E) + splat(ROUND)
    k = shifted - splat(ROUND)
    r = (held - k * splat(LN2_HIGH)) - k * splat(LN2_LOW)
    p = splat(E4)
    p = p * r + splat(E3)
    p = p * r + splat(E2)
    p = p * r + splat(E1)
    p = p * r + splat(E0)
    y = ((r * r) * p + r) + splat(ONE)
    scaled = y * power_of_two(shifted) * splat(MASS_ONE)
    rounded = (scaled + splat(WHOLE)) - splat(WHOLE)
    whole = where_below(scaled, splat(WHOLE), rounded, scaled)
    return where_below(d, splat(MASS_FLOOR), splat(ZERO), whole)
