"""Random bits, logarithm and exponential of the sampler: the same bits on every backend.

The definition, complete; other backends reproduce it bit for bit. Arithmetic is IEEE float32, rounded to
nearest even after each single operation: no fused multiply-add, no reassociation. No subnormals arise.
Constants are float32 and stand below with their bits.

    philox(seed, position, group, choice) → four uint32 words
        Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
        Key (seed mod 2³², seed div 2³²), counter (position, group, choice, 0). Token id v takes word
        v mod 4 of group v div 4.

    uniform(x), a word → v in [2⁻³³, 1 - 2⁻²⁴]
        v = min((float(x) + 0.5) · 2⁻³², 1 - 2⁻²⁴)          float(x) rounds to nearest even

    log(x), x positive and normal
        i = bits(x) - SQRT_HALF                             32 bits, wrapping
        k = i >> 23                                         arithmetic shift
        f = from_bits(bits(x) - (k << 23)) - 1
        → log1p_reduced(f, k)

    log1p_reduced(f, k) = log(1 + f) + k·ln 2, for √½ - 1 ≤ f ≤ √2 - 1
        p = LOG[7]; for j = 6 … 0: p = p · f + LOG[j]       a product, rounded, then a sum, rounded
        z = f · f
        q = (f · p) · z
        q = q + k · LN2_LOW
        q = q - 0.5 · z
        → (f + q) + k · LN2_HIGH

    exponential(v) = -log(1 - v), a standard exponential variate
        v < 0.25: → -log1p_reduced(-v, 0)
        else:     → -log(1 - v)

    gumbel(x) = -log(exponential(uniform(x)))               in [-2.82, 22.88]

    mass(d) = 2³² · exp(d) rounded to an unsigned 64-bit integer, for d ≤ 0
        d < -23: → 0                                        2³² · exp(-23) is under ½
        k = d · LOG2_E, rounded to the nearest integer, ties to even
        r = (d - k · LN2_HIGH) - k · LN2_LOW
        p = EXP[4]; for j = 3 … 0: p = p · r + EXP[j]
        y = ((r · r) · p + r) + 1
        → y · 2^(k + 32), exact, rounded to the nearest integer, ties to even

LN2_HIGH is short, so k · LN2_HIGH is exact; mass(0) is exactly 2³². The coefficients are our own fit:
weighted minimax (Lawson's iteration on Chebyshev nodes) of (log(1 + f) - f + f²/2) / f³ and of
(exp(r) - r - 1) / r², rounded to float32. Relative errors, which tests hold against float64, in units
of 2⁻²⁴: log 1.5, exponential 3.6, exp 1.5; gumbel 5, relative to max(1, |g|).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.arrays import Floats, Ints

Words = NDArray[np.uint32]
Masses = NDArray[np.uint64]

PHILOX_ROUNDS = 10
PHILOX_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
PHILOX_KEY_STEPS = 0x9E3779B9, 0xBB67AE85

BELOW_ONE = np.float32(1.0 - 2.0**-24)
SERIES_BELOW = np.float32(0.25)
SQRT_HALF = np.uint32(0x3F3504F3)
LN2_HIGH = np.float32(0.693145751953125)  # 3F317200
LN2_LOW = np.float32(1.428606765330187e-06)  # 35BFBE8E
LOG2_E = np.float32(1.4426950216293335)  # 3FB8AA3B
LOG = tuple(
    np.float32(value)
    for value in (
        0.3333333134651184,  # 3EAAAAAA
        -0.2500081956386566,  # BE800113
        0.20001226663589478,  # 3E4CD004
        -0.16623356938362122,  # BE2A3922
        0.14201757311820984,  # 3E116D0E
        -0.13160182535648346,  # BE06C2A1
        0.1276157796382904,  # 3E02ADB6
        -0.07634497433900833,  # BD9C5AC1
    )
)
EXP = tuple(
    np.float32(value)
    for value in (
        0.4999999403953552,  # 3EFFFFFE
        0.1666652113199234,  # 3E2AAA49
        0.04166838899254799,  # 3D2AAC79
        0.008368716575205326,  # 3C091CF1
        0.001381459878757596,  # 3AB5121A
    )
)
MASS_ONE = 1 << 32
MASS_FLOOR = np.float32(-23.0)
WORD = 0xFFFFFFFF


def philox(key: tuple[int, int], counter: Sequence[int | NDArray[np.uint64]]) -> tuple[Words, ...]:
    """Philox4x32-10: two key words and four counter words (arrays that broadcast) → four arrays.

    32-bit words are held in 64 bits, so that products are exact.
    """
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(word, np.uint64) for word in counter))
    k0, k1 = key
    for _ in range(PHILOX_ROUNDS):
        left, right = c0 * np.uint64(PHILOX_MULTIPLIERS[0]), c2 * np.uint64(PHILOX_MULTIPLIERS[1])
        c0, c1 = (right >> 32) ^ c1 ^ np.uint64(k0), right & WORD
        c2, c3 = (left >> 32) ^ c3 ^ np.uint64(k1), left & WORD
        k0, k1 = (k0 + PHILOX_KEY_STEPS[0]) & WORD, (k1 + PHILOX_KEY_STEPS[1]) & WORD
    return tuple(word.astype(np.uint32) for word in (c0, c1, c2, c3))


def words(seed: int, position: int, choice: int, ids: Ints) -> Words:
    """(n,) random words of one draw, one per token id in `ids`."""
    groups, group = np.unique(ids // 4, return_inverse=True)
    lanes = philox((seed & WORD, seed >> 32), (position, groups.astype(np.uint64), choice, 0))
    return np.stack(lanes, axis=1)[group, ids % 4]


def uniform(x: Words) -> Floats:
    """Words → float32 in [2⁻³³, 1 - 2⁻²⁴]."""
    v: Floats = (x.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    return np.minimum(v, BELOW_ONE)


def log1p_reduced(f: Floats, k: Ints) -> Floats:
    """log(1 + f) + k·ln 2 for √½ - 1 ≤ f ≤ √2 - 1."""
    steps = k.astype(np.float32)
    p = horner(LOG, f)
    z = f * f
    q = (f * p) * z
    q = q + steps * LN2_LOW
    q = q - np.float32(0.5) * z
    result: Floats = (f + q) + steps * LN2_HIGH
    return result


def log(x: Floats) -> Floats:
    """Natural logarithm of positive normal numbers."""
    bits = x.view(np.uint32)
    k = (bits - SQRT_HALF).view(np.int32) >> 23
    reduced = (bits - (k << 23).view(np.uint32)).view(np.float32)
    return log1p_reduced(reduced - np.float32(1.0), k)


def exponential(v: Floats) -> Floats:
    """-log(1 - v) of numbers in (0, 1)."""
    small = v < SERIES_BELOW
    series = log1p_reduced(np.where(small, -v, np.float32(0.0)), np.zeros(v.shape, np.int32))
    return -np.where(small, series, log(np.float32(1.0) - v))


def gumbel(x: Words) -> Floats:
    """Words → standard Gumbel variates."""
    return -log(exponential(uniform(x)))


def mass(d: Floats) -> Masses:
    """2³² · exp(d) as integers, for d ≤ 0 (negative infinity included)."""
    held = np.maximum(d, MASS_FLOOR)
    k: Floats = np.rint(held * LOG2_E)
    r: Floats = (held - k * LN2_HIGH) - k * LN2_LOW
    y = ((r * r) * horner(EXP, r) + r) + np.float32(1.0)
    scaled = np.ldexp(y, k.astype(np.int32) + 32)
    return np.where(d < MASS_FLOOR, 0, np.rint(scaled)).astype(np.uint64)


def horner(coefficients: Sequence[np.float32], x: Floats) -> Floats:
    """c[0] + c[1]·x + …, from the highest on, each product and each sum rounded."""
    p = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        p = p * x + coefficient
    return p
