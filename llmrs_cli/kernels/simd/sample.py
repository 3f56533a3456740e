# mypy: allow-untyped-defs
"""Drawing one token per row of logits.

`engine.backends.reference_sampling` is the definition, rule by rule; the tokens here are the same to the
bit. Work is proportional to V with a small factor: every pass but the selection runs sixteen wide, and
noise is made only for ids that may still be drawn.
"""

from __future__ import annotations

import numpy as np

from llmrs_cli.kernels.simd.atomics import hold, package
from llmrs_cli.kernels.simd.compiling import entry, inner
from llmrs_cli.kernels.simd.crew import share_out
from llmrs_cli.kernels.simd.keep import cut
from llmrs_cli.kernels.simd.kinds import COUNTS, FLAGS, INDICES, MASK, ROWS, TABLE, VALUES
from llmrs_cli.kernels.simd.lanes import LANES, between, max_lanes, maximum, splat
from llmrs_cli.kernels.simd.memory import load, load_first, store
from llmrs_cli.kernels.simd.noise import gumbel, mass, random_words
from llmrs_cli.kernels.simd.words import all_below, count_up, load_ints

NONE, INFINITE = np.float32(-np.inf), np.float32(np.inf)
COUNT_LIMIT = 32767
TEMPERATURE, TOP_P, MIN_P, REPETITION, PRESENCE, FREQUENCY = range(6)
"""Columns of the table `shares` (R, 6) f32."""
TOP_K, PROMPT, LENGTH, CHOICE, SEED_LOW, SEED_HIGH, ROW = range(7)
"""Columns of the table `counts` (R, 7) i64; LENGTH is n, the tokens that the row holds."""
MASS_ONE = np.float32(2.0**32)


@inner
def copy_logits(logits, r, scores):
    """Copy row r, -infinity up to a whole vector; whether all are below +infinity (and none NaN)."""
    vocab = logits.shape[1]
    sound = True
    for v in range(0, scores.size, LANES):
        left = vocab - v
        if left >= LANES:
            value = load(logits, r * vocab + v)
        else:
            value = between(load_first(logits, r * vocab + v, left), 0, left, splat(NONE))
        store(scores, v, value)
        if not all_below(value, splat(INFINITE)):
            sound = False
    return sound


@inner
def penalise(scores, tokens, share, count, seen):
    """Rules 1 and 2 for the ids among the row's tokens; `seen` is all zero before and after."""
    length, prompt = count[LENGTH], count[PROMPT]
    if share[REPETITION] != 1:
        for i in range(length):
            v = tokens[i]
            if seen[v] == 0:
                seen[v] = 1
                penalty = share[REPETITION]
                scores[v] = scores[v] / penalty if scores[v] > 0 else scores[v] * penalty
        for i in range(length):
            seen[tokens[i]] = 0
    if share[PRESENCE] != 0 or share[FREQUENCY] != 0:
        for i in range(prompt, length):
            seen[tokens[i]] += 1
        for i in range(prompt, length):
            v = tokens[i]
            if seen[v] > 0:
                repeats = np.float32(min(seen[v], COUNT_LIMIT))
                scores[v] = (scores[v] - share[FREQUENCY] * repeats) - share[PRESENCE]
                seen[v] = 0


@inner
def apply_mask(scores, mask, r, vocab):
    """Rule 4's mask: bit v mod 32 of word v div 32 allows id v."""
    for v in range(vocab):
        if not (mask[r, v // 32] >> np.uint32(v % 32)) & np.uint32(1):
            scores[v] = NONE


@inner
def scale_and_peak(scores, temperature):
    """Rule 5 in place; returns the greatest score (NaN, if there is one, makes `sound` false)."""
    peak = splat(NONE)
    sound = True
    for v in range(0, scores.size, LANES):
        value = load(scores, v)
        if temperature != 0:
            value = value / splat(temperature)
            store(scores, v, value)
        if not all_below(value, splat(INFINITE)):
            sound = False
        peak = maximum(value, peak)
    return max_lanes(peak), sound


@inner
def first_equal(scores, value):
    """Index of the first score that equals `value`."""
    for v in range(0, scores.size, LANES):
        if not all_below(load(scores, v), splat(value)):
            for i in range(v, v + LANES):
                if scores[i] == value:
                    return i
    return 0


@inner
def gather(scores, peak, share, ids, kept, masses):
    """Candidates of rules 9's conditions that need no order; returns their number.

    Where top-p is on, ids without mass are left out: the sum reaches its share before it comes to them.
    """
    weighed = share[MIN_P] > 0 or share[TOP_P] < 1
    floor = np.float32(np.rint(share[MIN_P] * MASS_ONE))
    if share[TOP_P] < 1:
        floor = max(floor, np.float32(1))
    count = 0
    for v in range(0, scores.size, LANES):
        if weighed:
            store(masses, v, mass(load(scores, v) - splat(peak)))
    for v in range(scores.size):
        if scores[v] > NONE and (not weighed or masses[v] >= floor):
            ids[count], kept[count], masses[count] = v, scores[v], masses[v]
            count += 1
    return count


@inner
def narrow(ids, kept, masses, size, share, count, keys):
    """Rules top-k and top-p; returns how many candidates are left."""
    if 0 < count[TOP_K] < size:
        size = cut(ids, kept, masses, size, keys, False, np.float64(count[TOP_K]))
    if share[TOP_P] < 1:
        total = np.int64(0)
        for i in range(size):
            total += np.int64(masses[i])
        size = cut(ids, kept, masses, size, keys, True, np.float64(share[TOP_P]) * np.float64(total))
    return size


@inner
def noisy(words, scores, count):
    """Scores plus the Gumbel noise of these ids."""
    return scores + gumbel(
        random_words(words, count[SEED_LOW], count[SEED_HIGH], count[LENGTH], count[CHOICE])
    )


@inner
def draw_kept(ids, kept, size, count):
    """Rules 10 and 11 over a list of candidates."""
    whole = (size + LANES - 1) // LANES * LANES
    ids[size:whole] = 0
    kept[size:whole] = NONE
    peak = splat(NONE)
    for i in range(0, whole, LANES):
        value = noisy(load_ints(ids, i), load(kept, i), count)
        store(kept, i, value)
        peak = maximum(value, peak)
    return ids[first_equal(kept[:whole], max_lanes(peak))]


@inner
def draw_any(scores, count):
    """Rules 10 and 11 where every id may be drawn."""
    peak = splat(NONE)
    for v in range(0, scores.size, LANES):
        value = noisy(count_up(v), load(scores, v), count)
        store(scores, v, value)
        peak = maximum(value, peak)
    return first_equal(scores, max_lanes(peak))


@inner
def draw_row(logits, r, tokens, share, count, bias, bans, mask, scratch):
    """(token, failed) of one row. bias: (ids, values) of rule 3; bans: ids of rule 4."""
    scores, kept, masses, ids, keys, seen = scratch
    sound = copy_logits(logits, r, scores)
    penalise(scores, tokens, share, count, seen)
    bias_ids, bias_values = bias
    for i in range(bias_ids.size):
        scores[bias_ids[i]] += bias_values[i]
    for i in range(bans.size):
        scores[bans[i]] = NONE
    if mask.size:
        apply_mask(scores, mask, r, logits.shape[1])
    peak, finite = scale_and_peak(scores, share[TEMPERATURE])
    if not (sound and finite and peak > NONE):
        return np.int64(0), True
    if share[TEMPERATURE] == 0:
        return np.int64(first_equal(scores, peak)), False
    if share[MIN_P] == 0 and share[TOP_P] >= 1 and count[TOP_K] == 0:
        return np.int64(draw_any(scores, count)), False
    size = gather(scores, peak, share, ids, kept, masses)
    size = narrow(ids, kept, masses, size, share, count, keys)
    return np.int64(draw_kept(ids, kept, size, count)), False


pack_draw, unpack_draw = package(
    ROWS, TABLE, ROWS, COUNTS, COUNTS, INDICES, VALUES, INDICES, MASK, INDICES, FLAGS
)


def draw_share(part, parts, arguments):
    """Every `parts`-th row from number `part` on."""
    logits, tokens, shares, counts, starts, bias_ids, bias_values, ban_ids, mask, out, failed = unpack_draw(
        arguments
    )
    rows, vocab = logits.shape
    whole = (vocab + LANES - 1) // LANES * LANES
    scores, kept = np.empty(whole, np.float32), np.empty(whole, np.float32)
    masses, keys = np.empty(whole, np.float32), np.empty(whole, np.int64)
    ids, seen = np.empty(whole, np.int32), np.zeros(vocab, np.int32)
    scratch = (scores, kept, masses, ids, keys, seen)
    for r in range(part, rows, parts):
        bias = bias_ids[starts[0, r] : starts[0, r + 1]], bias_values[starts[0, r] : starts[0, r + 1]]
        bans = ban_ids[starts[1, r] : starts[1, r + 1]]
        known = tokens[counts[r, ROW]]
        out[r], failed[r] = draw_row(logits, r, known, shares[r], counts[r], bias, bans, mask, scratch)


@entry
def draw(
    share, board, logits, tokens, shares, counts, starts, bias_ids, bias_values, ban_ids, mask, out, failed
):
    """Draw a token for each row of (R, V) logits: out (R,) i32, failed (R,) bool.

    tokens: (rows, context + 1) i32; shares, counts: the parameters, by the columns above; starts:
    (2, R + 1) i64, where each row's part of the bias and of the bans begins; mask: (R, ceil(V/32)) u32 or
    (0, 0); share: address of `draw_share`.
    """
    arguments = (logits, tokens, shares, counts, starts, bias_ids, bias_values, ban_ids, mask, out, failed)
    share_out(board, share, logits.shape[0], pack_draw(arguments))
    hold(arguments)
