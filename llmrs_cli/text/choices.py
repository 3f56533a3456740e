"""How likely each of a few labels is as the whole answer, by forced passes through the engine.

A label's probability is that of its tokens and then an end token; so 'a' and 'ab' are told apart. Every
label is one request that shares the prompt; nothing is drawn. Logits are taken raw: temperature and other
rules of drawing play no part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmrs_cli.errors import RequestError
from llmrs_cli.text.options import GenerateOptions

if TYPE_CHECKING:
    from llmrs_cli.text.generate import LogProb, TextEngine


def score_labels(engine: TextEngine, prompt: Sequence[int], labels: Sequence[str]) -> list[float]:
    """The share of each label, summing to 1; `labels` in their order.

    A label is cut into tokens as the tokenizer cuts it; other ways to spell it are not counted. Raises
    RequestError for fewer than two labels, an empty or repeated one, or a model without end tokens, and
    ContextLengthError if one does not fit.
    """
    if len(labels) < 2 or len(set(labels)) < len(labels) or not all(labels):
        raise RequestError("Choices must be at least two different, non-empty labels.", param="choices")
    if not engine.eos_ids or engine.tokenizer is None:
        raise RequestError("This model has no end token, so whole labels cannot be told apart.")
    ids = [engine.tokenizer.encode_parts([0, label])[1:] for label in labels]  # as text after a control token
    options = GenerateOptions(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    forced = [[engine.start((*prompt, *label, end), options) for end in engine.eos_ids] for label in ids]
    scores = [
        [_tail(run.result().prompt_logprobs or (), len(label) + 1) for run in runs]
        for label, runs in zip(ids, forced, strict=True)
    ]
    return _shares([_log_sum(ends) for ends in scores])


def _tail(logprobs: Sequence[LogProb | None], count: int) -> float:
    """The log-probability of the last `count` tokens of a prompt, of which there are more."""
    return sum(score.logprob for score in logprobs[-count:] if score is not None)


def _log_sum(values: Sequence[float]) -> float:
    top = max(values)
    return top if math.isinf(top) else top + math.log(sum(math.exp(value - top) for value in values))


def _shares(scores: Sequence[float]) -> list[float]:
    """Probabilities in the same ratio; equal ones if nothing is possible at all."""
    total = _log_sum(scores)
    return [1 / len(scores) if math.isinf(total) else math.exp(score - total) for score in scores]
