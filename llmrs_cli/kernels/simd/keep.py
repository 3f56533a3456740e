# mypy: allow-untyped-defs
"""Cutting a list of candidates to its best: exact top-k and top-p without sorting the vocabulary.

Candidates are (id, score, mass) in three arrays, ids ascending; the order that counts is score
descending, then id ascending. A radix selection finds the last score that is kept: a histogram over the
upper bits of the scores, then over the next bits of the one bin where the limit falls, three times.
"""

from __future__ import annotations

import numpy as np

from llmrs_cli.kernels.simd.compiling import inner

DIGITS = ((20, 4096), (10, 1024), (0, 1024))
"""(shift, bins) of the digits of a 32-bit key, the upper one first."""
BINS = 4096
KEY_BITS = 32
TOP_BIT, ALL_BITS = 1 << 31, (1 << 32) - 1


@inner
def order_key(score_bits):
    """Unsigned key that grows with the score; -0 and +0 share one. Argument: the bits, as int64 ≥ 0."""
    if score_bits == TOP_BIT:
        score_bits = 0
    return ALL_BITS - score_bits if score_bits & TOP_BIT else score_bits + TOP_BIT


@inner
def cut(ids, scores, masses, count, keys, by_mass, limit):
    """Keep the shortest non-empty prefix that holds `limit` candidates, or (by mass) a sum of at least it.

    Sums are integers, compared with the float64 `limit`. Returns the new count; order stays ascending.
    """
    patterns = scores.view(np.uint32)
    for i in range(count):
        keys[i] = order_key(np.int64(patterns[i]))
    sums = np.empty(BINS, np.int64)
    held = np.empty(BINS, np.int64)
    before, prefix, known = np.int64(0), 0, KEY_BITS
    for shift, bins in DIGITS:
        sums[:bins] = 0
        held[:bins] = 0
        for i in range(count):
            key = keys[i]
            if known == KEY_BITS or key >> known == prefix:
                digit = (key >> shift) & (bins - 1)
                held[digit] += 1
                sums[digit] += np.int64(masses[i]) if by_mass else 1
        chosen = 0
        for digit in range(bins - 1, -1, -1):
            if held[digit] == 0:
                continue
            chosen = digit
            if np.float64(before + sums[digit]) >= limit:
                break
            before += sums[digit]
        else:
            before -= sums[chosen]
        prefix = prefix * bins + chosen
        known = shift
    kept = 0
    for i in range(count):
        take = keys[i] > prefix
        if keys[i] == prefix and (np.float64(before) < limit or kept == 0):
            before += np.int64(masses[i]) if by_mass else 1
            take = True
        if take:
            ids[kept], scores[kept], masses[kept] = ids[i], scores[i], masses[i]
            kept += 1
    return kept
