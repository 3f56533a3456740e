"""Logits and filters that are hard on a sampler which avoids sorting."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmrs_cli.engine.arrays import Floats

FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "top-p": {"top_p": 0.9},
    "top-p tiny": {"top_p": 1e-6},
    "top-k": {"top_k": 40},
    "top-k 1": {"top_k": 1},
    "large top-k": {"top_k": 700, "top_p": 0.8},
    "both": {"top_k": 40, "top_p": 0.5},
    "min-p": {"min_p": 0.1},
    "all": {"top_k": 300, "top_p": 0.9, "min_p": 0.3},
}


def hard_rows(vocab: int) -> Floats:
    """(9, V) logits that leave little to go by."""
    noise = np.random.default_rng(vocab).standard_normal(vocab)
    lone = np.full(vocab, -np.inf)
    lone[vocab // 2] = -3
    few = lone.copy()
    few[::97] = noise[::97]
    rows = {
        "equal": np.zeros(vocab),
        "one finite": lone,
        "few finite": few,
        "rising": np.linspace(-5, 5, vocab),
        "tied after division": 1 + 2e-7 * (np.arange(vocab) % 3 == 0),
        "signed zeros": np.where(noise > 0, 0.0, -0.0),
        "tiny": noise * 1e-38,
        "huge": np.clip(noise * 1e37, -3e37, 3e37),
        "none": np.full(vocab, -np.inf),
    }
    return np.stack(list(rows.values())).astype(np.float32)
