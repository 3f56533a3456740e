"""From a request's sampling parameters to the sampling state of a row. Draws nothing.

The rules themselves are defined in `backends.reference_sampling`; here values take the form that every
backend can hold: float32 range, 32-bit integers, distinct bias ids.
"""

from __future__ import annotations

import numpy as np

from llmrs_cli.engine.arrays import Floats, Ints, RowSampling
from llmrs_cli.engine.types import SamplingParams

COLDEST = 1e-5
"""Temperatures below this are greedy: a division by them would leave float32."""
MAX_INT = 2**31 - 1
SMALLEST_PENALTY, LARGEST_PENALTY = 1e-30, 1e30
"""Any other repetition penalty, or a logit divided by it, might be no normal float32."""


def row_sampling(params: SamplingParams, prompt_length: int, choice: int) -> RowSampling:
    """Sampling state of a row; `params` have passed `check_params`, lengths are in tokens."""
    bias_ids, bias_values = _merge_bias(params)
    return RowSampling(
        temperature=params.temperature if params.temperature >= COLDEST else 0.0,
        top_k=min(params.top_k, MAX_INT),
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=min(max(params.repetition_penalty, SMALLEST_PENALTY), LARGEST_PENALTY),
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        seed=params.seed,
        choice=choice,
        prompt_length=prompt_length,
        min_length=min(prompt_length + params.min_tokens, MAX_INT),
        bias_ids=bias_ids,
        bias_values=bias_values,
        stop_ids=np.array(sorted({*params.stop_ids}), np.int32),
        logprobs=-1 if params.logprobs is None else params.logprobs,
    )


def _merge_bias(params: SamplingParams) -> tuple[Ints, Floats]:
    """Ascending distinct ids with the sum of their entries."""
    total: dict[int, float] = {}
    for token, bias in params.logit_bias:
        total[token] = total.get(token, 0.0) + bias
    ids = sorted(total)
    return np.array(ids, np.int32), np.array([total[token] for token in ids], np.float32)
