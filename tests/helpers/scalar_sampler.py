"""A second reading of the sampler's definition: plain Python numbers, one token id at a time.

Written from the text of `backends.reference_sampling` and `backends.reference_random`, not from their
code. A float32 operation is done in float64 and rounded: for +, -, · and / of two float32 numbers that
equals the float32 operation, since 53 ≥ 2 · 24 + 2 bits.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from llmrs_cli.engine.arrays import RowSampling

MASK = 0xFFFFFFFF
LN2_HIGH, LN2_LOW, LOG2_E = 0x3F317200, 0x35BFBE8E, 0x3FB8AA3B
LOG = 0x3EAAAAAA, 0xBE800113, 0x3E4CD004, 0xBE2A3922, 0x3E116D0E, 0xBE06C2A1, 0x3E02ADB6, 0xBD9C5AC1
EXP = 0x3EFFFFFE, 0x3E2AAA49, 0x3D2AAC79, 0x3C091CF1, 0x3AB5121A


def f32(x: float) -> float:
    """Round to float32."""
    return float(struct.unpack("<f", struct.pack("<f", x))[0])


def bits(x: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", x))[0])


def of(word: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", word & MASK))[0])


def horner(words: Sequence[int], x: float) -> float:
    p = of(words[-1])
    for word in reversed(words[:-1]):
        p = f32(f32(p * x) + of(word))
    return p


def log1p_reduced(f: float, k: int) -> float:
    z = f32(f * f)
    q = f32(f32(f * horner(LOG, f)) * z)
    q = f32(q + f32(k * of(LN2_LOW)))
    q = f32(q - f32(0.5 * z))
    return f32(f32(f + q) + f32(k * of(LN2_HIGH)))


def log(x: float) -> float:
    i = (bits(x) - 0x3F3504F3) & MASK
    k = (i - (1 << 32) if i >> 31 else i) >> 23
    return log1p_reduced(f32(of(bits(x) - (k << 23)) - 1.0), k)


def gumbel(word: int) -> float:
    v = min(f32(f32(f32(word) + 0.5) * 2.0**-32), 1 - 2.0**-24)
    e = -log1p_reduced(-v, 0) if v < 0.25 else -log(f32(1.0 - v))
    return -log(e)


def mass(d: float) -> int:
    if d < -23.0:
        return 0
    k = round(f32(d * of(LOG2_E)))
    r = f32(f32(d - f32(k * of(LN2_HIGH))) - f32(k * of(LN2_LOW)))
    y = f32(f32(f32(f32(r * r) * horner(EXP, r)) + r) + 1.0)
    return round(math.ldexp(y, k + 32))


def philox(seed: int, counter: Sequence[int]) -> list[int]:
    c, k = list(counter), [seed & MASK, seed >> 32]
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK, (a >> 32) ^ c[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def draw(
    logits: Sequence[float], s: RowSampling, tokens: Sequence[int], mask: Sequence[int] | None = None
) -> tuple[int, bool]:
    """The token, and whether the row failed."""
    n, ids = len(tokens), range(len(logits))
    raw = [float(x) for x in logits]
    l = list(raw)  # noqa: E741 (the name in the definition)
    p = f32(s.repetition_penalty)
    if p != 1:
        for v in set(tokens):
            l[v] = f32(l[v] / p) if l[v] > 0 else f32(l[v] * p)
    answer = list(tokens[s.prompt_length :])
    for v in set(answer):
        repeats = min(answer.count(v), 32767)
        l[v] = f32(f32(l[v] - f32(f32(s.frequency_penalty) * repeats)) - f32(s.presence_penalty))
    for v, b in zip(s.bias_ids.tolist(), s.bias_values.tolist(), strict=True):
        l[v] = f32(l[v] + b)
    banned = set(s.stop_ids.tolist()) if n < s.min_length else set()
    if mask is not None:
        banned |= {v for v in ids if not mask[v // 32] >> (v % 32) & 1}
    for v in banned:
        l[v] = -math.inf
    scores = [f32(x / f32(s.temperature)) for x in l] if s.temperature else l
    if any(math.isnan(x) or x == math.inf for x in raw) or not math.isfinite(max(scores)):
        return 0, True
    best = max(scores)
    if not s.temperature:
        return scores.index(best), False
    w = [mass(f32(x - best)) for x in scores]
    order = sorted((v for v in ids if scores[v] > -math.inf), key=lambda v: (-scores[v], v))
    order = [v for v in order if w[v] >= round(f32(s.min_p) * 2**32)]
    if s.top_k:
        order = order[: s.top_k]
    if f32(s.top_p) < 1:
        order = order[: prefix([w[v] for v in order], f32(s.top_p))]
    totals = {
        v: f32(scores[v] + gumbel(philox(s.seed, (n, v // 4, s.choice, 0))[v % 4])) for v in sorted(order)
    }
    return max(totals, key=lambda v: totals[v]), False


def prefix(weights: Sequence[int], p: float) -> int:
    """Length of the shortest non-empty prefix whose sum is at least p of the whole."""
    target, total = p * float(sum(weights)), 0
    for length, weight in enumerate(weights, 1):
        total += weight
        if float(total) >= target:
            return length
    raise AssertionError("the whole is never under its share")
