"""Rows that must have the same answer: it is computed once.

That is certain only where nothing is drawn by chance (temperature 0), or where the row itself names the
seed. Then the answer is a function of prompt and options, and rows that agree in them are twins.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Generic, TypeVar

from llmrs_cli.batch.records import Ask

if TYPE_CHECKING:
    from llmrs_cli.text.generate import GenerateOptions, GenerationResult, SamplingDefaults

T = TypeVar("T")

MAX_TOKENS = 2**20
"""Tokens of the answers that are remembered."""


def twin_key(
    prompt: tuple[int, ...], options: GenerateOptions, ask: Ask, defaults: SamplingDefaults
) -> bytes | None:
    """Equal for twins; None if the answer of this row is a matter of chance."""
    temperature = defaults.temperature if options.temperature is None else options.temperature
    if temperature != 0 and ask.options.get("seed") is None:
        return None
    if temperature == 0:
        options = replace(options, seed=None)
    return blake2b(array("q", prompt).tobytes() + repr(options).encode(), digest_size=16).digest()


class Twins(Generic[T]):
    """The first of each kind, while it runs; and the latest answers."""

    def __init__(self, window: int) -> None:
        """`window`: answers that are remembered."""
        self._window = window
        self._running: dict[bytes, T] = {}
        self._answers: dict[bytes, GenerationResult] = {}
        self._tokens = 0

    def running(self, key: bytes) -> T | None:
        """Who is computing this answer now."""
        return self._running.get(key)

    def answer(self, key: bytes) -> GenerationResult | None:
        """The answer, if it is remembered."""
        return self._answers.get(key)

    def begin(self, key: bytes, first: T) -> None:
        """`first` computes the answer."""
        self._running[key] = first

    def end(self, key: bytes, answer: GenerationResult | None) -> None:
        """It is there, or with None it will not come. One with log-probabilities is too large to keep."""
        del self._running[key]
        if answer is None or any(choice.logprobs for choice in answer.choices):
            return
        self._answers[key] = answer
        self._tokens += answer.usage.completion_tokens
        while len(self._answers) > self._window or self._tokens > MAX_TOKENS:
            oldest = self._answers.pop(next(iter(self._answers)))
            self._tokens -= oldest.usage.completion_tokens
