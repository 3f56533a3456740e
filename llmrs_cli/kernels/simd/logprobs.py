# mypy: allow-untyped-defs
"""Log-probabilities of chosen tokens, and the best alternatives."""

from __future__ import annotations

import numpy as np

from llmrs_cli.kernels.simd.atomics import hold, package
from llmrs_cli.kernels.simd.compiling import entry, inner
from llmrs_cli.kernels.simd.crew import share_out
from llmrs_cli.kernels.simd.kinds import FLAGS, INDICES, ROWS, TABLE, VALUES


@inner
def score_row(logits, r, target, alternatives, top_ids, top_values):
    """(log-softmax at `target`, whether there is a NaN), and the best alternatives, best first."""
    vocab = logits.shape[1]
    peak = np.float64(-np.inf)
    broken = False
    size = 0
    for v in range(vocab):
        value = logits[r, v]
        broken = broken or np.isnan(value)
        peak = max(peak, np.float64(value))
        if alternatives > 0 and (size < alternatives or value > top_values[r, size - 1]):
            size = min(size + 1, alternatives)
            i = size - 1
            while i > 0 and value > top_values[r, i - 1]:
                top_values[r, i], top_ids[r, i] = top_values[r, i - 1], top_ids[r, i - 1]
                i -= 1
            top_values[r, i], top_ids[r, i] = value, v
    total = np.float64(0)
    for v in range(vocab):
        total += np.exp(np.float64(logits[r, v]) - peak)
    base = peak + np.log(total)
    for i in range(alternatives):
        top_values[r, i] = np.float32(np.float64(top_values[r, i]) - base)
    return np.float32(np.float64(logits[r, target]) - base), broken


pack_score, unpack_score = package(ROWS, INDICES, VALUES, FLAGS, TABLE, ROWS)


def score_share(part, parts, arguments):
    """Every `parts`-th row from number `part` on."""
    logits, targets, out, failed, top_ids, top_values = unpack_score(arguments)
    for r in range(part, logits.shape[0], parts):
        out[r], failed[r] = score_row(logits, r, targets[r], top_ids.shape[1], top_ids, top_values)


@entry
def score(share, board, logits, targets, out, failed, top_ids, top_values):
    """Log-softmax of (P, V) logits at `targets` (P,), and the best of each row: (P, L) ids and values.

    Lower ids come first among equals. Sums in float64. share: address of `score_share`.
    """
    arguments = (logits, targets, out, failed, top_ids, top_values)
    share_out(board, share, logits.shape[0], pack_score(arguments))
    hold(arguments)
