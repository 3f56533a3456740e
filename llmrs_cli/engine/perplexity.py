"""How well a model foretells a text: perplexity over windows that overlap, on any backend.

A window is read in one pass. Windows begin `stride` tokens apart, and each scores only what no window before
it has scored, so that every token counts once and all but the first have at least `window - stride` tokens
before them. The log-probabilities are those of the backend (`Backend.score`); their sum is in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from llmrs_cli.engine.backends.base import HEAD_ROWS
from llmrs_cli.engine.forced import ForcedReader, Loaded
from llmrs_cli.engine.model.decoder import run_head
from llmrs_cli.errors import EngineFault


@dataclass(frozen=True, slots=True)
class Windows:
    """How a text is cut."""

    length: int
    """Tokens of a window, at least 2, what stands before the text included."""
    stride: int
    """Tokens from the start of one to the start of the next; less than `length`."""
    prefix: tuple[int, ...] = ()
    """Ids before the text of each window, such as the token that begins a text."""

    def __post_init__(self) -> None:
        assert 1 <= self.stride <= self.length - max(1, len(self.prefix))

    def over(self, count: int) -> Iterator[tuple[int, int, int]]:
        """(start, first scored, stop) of each window over `count` tokens.

        The first token of all is scored only where something stands before it.
        """
        scored, start = (0 if self.prefix else 1), 0
        while scored < count:
            stop = min(start + self.length - len(self.prefix), count)
            yield start, scored, stop
            scored, start = stop, start + self.stride


@dataclass(frozen=True, slots=True)
class Score:
    """What a text cost."""

    tokens: int
    """Scored."""
    windows: int
    nll: float
    """Sum of -log p of the scored tokens, in nats."""

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll / self.tokens)

    def bits_per_byte(self, size: int) -> float:
        """Comparable between tokenizers; `size` of the text in bytes."""
        return self.nll / math.log(2) / size


def score_text(
    loaded: Loaded,
    ids: Sequence[int],
    windows: Windows,
    progress: Callable[[int, int], None] | None = None,
) -> Score:
    """Score `ids`, of which at least one must have something before it; `progress` gets tokens done and in all.

    Raises EngineFault if the model's logits are no numbers.
    """
    reader = ForcedReader(loaded, windows.length)
    tokens, count, nll = 0, 0, 0.0
    for start, first, stop in windows.over(len(ids)):
        window = [*windows.prefix, *ids[start:stop]]
        nll += _score_tail(loaded, reader, window, stop - first)
        tokens, count = tokens + stop - first, count + 1
        if progress is not None:
            progress(stop, len(ids))
    assert tokens, "there is nothing to score"
    if not math.isfinite(nll):
        raise EngineFault("The model's logits are no numbers.", hint="`llmrs verify` finds where they break.")
    return Score(tokens, count, nll)


def _score_tail(loaded: Loaded, reader: ForcedReader, ids: Sequence[int], count: int) -> float:
    """-log p of the last `count` tokens, summed; logits of HEAD_ROWS tokens are held at a time."""
    backend = loaded.backend
    body, step = reader.read(ids)
    end = len(ids) - 1
    total = 0.0
    for begin in range(end - count, end, HEAD_ROWS):
        part = slice(begin, min(begin + HEAD_ROWS, end))
        logits = run_head(backend, loaded.model, body, step.scored_tokens[part])
        drawn = backend.fetch(backend.score(logits, step.scored_targets[part], 0))
        if drawn.failed.any():
            return math.nan
        total -= float(np.sum(drawn.logprobs, dtype=np.float64))
    return total
