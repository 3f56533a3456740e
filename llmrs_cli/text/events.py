"""What a generation tells: pieces of text as they come, and the whole at the end; plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from llmrs_cli.engine import FinishReason, TokenLogprob
from llmrs_cli.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class LogProb:
    """A token with its log-probability, before any sampling rule."""

    token: int
    text: str
    """The token alone; a part of a character shows as U+FFFD, `data` is exact."""
    data: bytes
    logprob: float
    top: tuple[LogProb, ...] = ()
    """The best alternatives, best first; as many as were asked for, however alike their text."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one generation."""

    prompt_tokens: int
    completion_tokens: int
    """Of all choices, end tokens and tokens without text included."""
    cached_tokens: int
    """Prompt tokens that came from the prefix cache (of the first choice)."""

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class TextEvent(NamedTuple):
    """News of one choice; a tuple, as there is one for each token. `text` may be empty: a character or a stop string may still be unfinished."""

    choice: int
    text: str
    token_ids: tuple[int, ...] = ()
    """Tokens that arrived with it; their text may come later."""
    logprobs: tuple[LogProb, ...] = ()
    """One per token, if asked for."""
    finish_reason: FinishReason | None = None
    """On the last event of the choice."""
    usage: Usage | None = None
    """On the last event of the last choice."""
    prompt_logprobs: tuple[LogProb | None, ...] = ()
    """Those of the next prompt tokens, None for the first, if asked for: all at once, or in several events."""


@dataclass(frozen=True, slots=True)
class ChoiceResult:
    """One whole answer."""

    text: str
    token_ids: tuple[int, ...]
    """Up to the end token or the token that completed a stop string, which are included."""
    finish_reason: FinishReason
    logprobs: tuple[LogProb, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """All answers to one prompt, by choice."""

    choices: tuple[ChoiceResult, ...]
    usage: Usage
    prompt_logprobs: tuple[LogProb | None, ...] | None = None
    """One per prompt token, None for the first; only if asked for."""


def named(score: TokenLogprob, tokenizer: Tokenizer | None) -> LogProb:
    """The engine's log-probability with texts and bytes; empty ones without a tokenizer."""

    def one(token: int, logprob: float, top: tuple[LogProb, ...] = ()) -> LogProb:
        data = b"" if tokenizer is None else tokenizer.token_bytes(token)
        return LogProb(token, data.decode(errors="replace"), data, logprob, top)

    return one(score.token, score.logprob, tuple(one(token, logprob) for token, logprob in score.top))
