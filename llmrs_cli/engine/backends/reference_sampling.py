"""Drawing a token: a function of (logits, sampling state, the row's tokens, mask), the same on every backend.

The definition, complete; other backends reproduce it bit for bit, given equal logits. Arithmetic is IEEE
float32, rounded to nearest even after each single operation (divisions too), unless another type is
named; parameters are rounded to float32 first. Random bits, `gumbel` and `mass` are defined in
`reference_random`. V is the vocabulary; n, the *position*, is how many tokens the row holds, hence the
index that the drawn token will have. l[v] starts as the raw logit of id v; -infinity means excluded.

    1  repetition penalty p ≠ 1: for each id that occurs among the row's tokens, prompt and answer,
           l = l / p if l > 0, else l · p
    2  for each id that occurs c ≥ 1 times in the answer (tokens from prompt_length on):
           l = (l - frequency · float(min(c, 32767))) - presence
    3  logit bias: l = l + b for each of its ids (which are distinct)
    4  l = -infinity for stop ids while n < min_length, and for ids whose mask bit is 0
           (id v: bit v mod 32 of word v div 32)
    5  temperature 0: s = l. Else s = l / temperature.
    6  failed, if any raw logit is NaN or +infinity, or if max s is not finite. The token is then 0.
    7  temperature 0: the token is the lowest id with the greatest s. Done.
    8  w[v] = mass(s[v] - max s), an integer; 2³² for the best
    9  kept are the ids with s > -infinity, and of these only, one rule after the other:
       min-p   w[v] ≥ round(min_p · 2³²), ties to even (0 keeps all)
       top-k   k ≥ 1: the first k in the order (s descending, id ascending)
       top-p   p < 1: the shortest non-empty prefix, in that order, whose sum of w is at least
               float64(p) · float64(W), where W is the sum of w over what top-k left. Sums are 64-bit
               integers, compared as float64; the product is one float64 multiplication.
    10 g[v] = gumbel(word v mod 4 of philox(seed, n, v div 4, choice))
    11 the token is the lowest kept id with the greatest s[v] + g[v]

-0 and +0 compare equal everywhere, so they tie. Min-p, top-k and top-p see probabilities at the chosen
temperature. Reported log-probabilities are the log-softmax of the raw logits, in float64 here; of a
failed row they are 0. Alternatives are the greatest raw logits, lower ids first among equals.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.arrays import Draws, Floats, Ints, RowSampling
from llmrs_cli.engine.backends.reference_random import MASS_ONE, Masses, gumbel, mass, words

PLACEHOLDER = 0
"""The token of a failed row: any valid id."""
COUNT_LIMIT = 32767
"""What a device's 16-bit counter holds beside the bit 'seen in the prompt'."""
MaskWords = NDArray[np.uint32]


def draw(
    logits: Floats, sampling: RowSampling, tokens: Ints, mask: MaskWords | None = None
) -> tuple[int, bool]:
    """(V,) logits, the row's n tokens so far and (ceil(V/32),) mask words → (token id, failed)."""
    with np.errstate(over="ignore", invalid="ignore"):
        scores = scale(adjust(logits, sampling, tokens, mask), sampling)
    best = scores.max()
    # Written so that a NaN anywhere makes the comparison false.
    if not (logits.max() < np.inf and np.isfinite(best)):
        return PLACEHOLDER, True
    if sampling.temperature == 0:
        return int(np.argmax(scores)), False
    kept = keep(scores, sampling)
    noise = gumbel(words(sampling.seed, len(tokens), sampling.choice, kept))
    return int(kept[np.argmax(scores[kept] + noise)]), False


def adjust(logits: Floats, sampling: RowSampling, tokens: Ints, mask: MaskWords | None) -> Floats:
    """Rules 1 to 4: penalties, bias, bans."""
    l = logits.astype(np.float32)  # noqa: E741 (the name in the definition above)
    penalty = np.float32(sampling.repetition_penalty)
    if penalty != 1:
        seen = np.unique(tokens)
        l[seen] = np.where(l[seen] > 0, l[seen] / penalty, l[seen] * penalty)
    frequency, presence = np.float32(sampling.frequency_penalty), np.float32(sampling.presence_penalty)
    if frequency != 0 or presence != 0:
        said, counts = np.unique(tokens[sampling.prompt_length :], return_counts=True)
        repeats = np.minimum(counts, COUNT_LIMIT).astype(np.float32)
        l[said] = (l[said] - frequency * repeats) - presence
    l[sampling.bias_ids] += sampling.bias_values
    if len(tokens) < sampling.min_length:
        l[sampling.stop_ids] = -np.inf
    if mask is not None:
        l[~allowed(mask, len(l))] = -np.inf
    return l


def allowed(mask: MaskWords, vocab: int) -> NDArray[np.bool_]:
    """Mask words → one flag an id."""
    flags = np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little", count=vocab)
    return flags.astype(np.bool_)


def scale(logits: Floats, sampling: RowSampling) -> Floats:
    """Rule 5: the scores that all later rules see."""
    if sampling.temperature == 0:
        return logits
    scores: Floats = logits / np.float32(sampling.temperature)
    return scores


def keep(scores: Floats, sampling: RowSampling) -> Ints:
    """Rules 8 and 9: the ids that may be drawn, ascending."""
    top_p = np.float32(sampling.top_p)
    weights = mass(scores - scores.max())
    floor = np.rint(np.float32(sampling.min_p) * np.float32(MASS_ONE)).astype(np.uint64)
    kept = np.flatnonzero((scores > -np.inf) & (weights >= floor))
    if sampling.top_k > 0:
        kept = kept[best(scores[kept], sampling.top_k)]
    if top_p < 1:
        kept = kept[np.argsort(-scores[kept], kind="stable")]
        kept = kept[: nucleus(weights[kept], top_p)]
    return np.sort(kept).astype(np.int32)


def best(values: Floats, count: int) -> NDArray[np.intp]:
    """Indices of the `count` greatest (or of all there are), best first, lower ones first among equals."""
    count = min(count, len(values))
    if count == 0:
        return np.zeros(0, np.intp)
    least = np.partition(values, -count)[-count]
    # Not `>=`: of a row with a NaN some `count` indices are given too.
    able = np.flatnonzero(~(values < least))
    return able[np.argsort(-values[able], kind="stable")][:count]


def nucleus(weights: Masses, p: np.float32) -> int:
    """How many leading weights, at least one, reach the share p of their sum."""
    sums = np.cumsum(weights).astype(np.float64)
    return int(np.searchsorted(sums, np.float64(p) * sums[-1])) + 1


def draw_rows(
    logits: Floats,
    states: Sequence[RowSampling],
    tokens: Sequence[Ints],
    mask: NDArray[np.uint32] | None,
) -> Draws:
    """One token per row of (R, V) logits, with log-probabilities for the rows that ask for them."""
    drawn = [
        draw(logits[r], states[r], tokens[r], None if mask is None else mask[r]) for r in range(len(states))
    ]
    ids = np.array([token for token, _ in drawn], np.int32)
    failed = np.array([flag for _, flag in drawn], np.bool_)
    asked = max((state.logprobs for state in states), default=-1)
    if asked < 0:
        nothing = np.zeros((len(ids), 0), np.float32)
        return Draws(ids, failed, np.zeros(len(ids), np.float32), nothing.astype(np.int32), nothing)
    scored = score(np.where(failed[:, None], np.float32(0), logits), ids, asked)
    return Draws(
        ids, failed, np.where(failed, np.float32(0), scored.logprobs), scored.top_ids, scored.top_logprobs
    )


def score(logits: Floats, targets: Ints, alternatives: int) -> Draws:
    """Log-softmax of (P, V) logits at `targets` (P,), and the best `alternatives` (at most V)."""
    logprobs = log_softmax(logits)
    top = np.array([best(row, alternatives) for row in logits]).reshape(len(logits), -1)
    at = np.take_along_axis(logprobs, targets[:, None].astype(np.intp), axis=-1)[:, 0]
    return Draws(
        ids=targets,
        failed=np.asarray(np.isnan(logits).any(axis=-1)),
        logprobs=at.astype(np.float32),
        top_ids=top.astype(np.int32),
        top_logprobs=np.take_along_axis(logprobs, top, axis=-1).astype(np.float32),
    )


def log_softmax(logits: Floats) -> NDArray[np.float64]:
    """Of each row, in float64."""
    wide = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):  # of an infinity: NaN, as it should be
        shifted = wide - wide.max(axis=-1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
