"""What goes into the engine and what comes out: plain values of token ids, no text and no arrays.

A `Request` names one sequence to generate. Several choices for one prompt (`n`) are several requests
that differ in `choice`; the prefix cache makes them share the prompt. `check_params` is the one place
where sampling parameters are validated, for the command line, batch rows and the server alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import NamedTuple, TypeVar

from llmrs_cli.errors import RequestError

MAX_LOGPROBS = 20
"""Alternatives that can be reported per token."""
MAX_BIAS_ENTRIES = 1024
BIAS_LIMIT = 100.0
MAX_TEMPERATURE = 2.0
MAX_SEED = 2**64
BROKEN = "engine_fault"
"""The code of an event that ends a request because the engine can serve nobody any more."""
FORM = "form_too_complex"
"""Code of an answer that ended since its form could not be followed further: the request's fault, not the engine's."""
Score = TypeVar("Score", "TokenLogprob", "TokenLogprob | None")


class FinishReason(StrEnum):
    """Why a sequence ended. A stop string is found by the text layer, which then aborts."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn and when the sequence ends.

    Neutral values switch a rule off: temperature 0 is greedy, top_k 0 and top_p 1.0 keep everything,
    min_p 0.0, penalties 0.0 (repetition 1.0). Order of application: repetition penalty, presence and
    frequency penalties, logit bias, grammar mask, temperature, min-p, top-k, top-p.
    """

    max_tokens: int
    """Tokens to generate at most, the end token included."""
    min_tokens: int = 0
    """No end or stop id may be drawn before this many tokens."""
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """CTRL rule over prompt and answer: positive logits divided, negative ones multiplied."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of each id that the answer already holds."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of an id, times its count in the answer."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    """Key of the request's random stream; the caller draws one where the user gave none."""
    stop_ids: tuple[int, ...] = ()
    """Ids that end the sequence: the model's end tokens and what the user added."""
    ignore_eos: bool = False
    """Run to max_tokens whatever is drawn."""
    logprobs: int | None = None
    """Report log-probabilities of the chosen token and of this many alternatives (0…20)."""
    prompt_logprobs: int | None = None
    """The same for each prompt token but the first."""


def check_params(params: SamplingParams, vocab: int) -> None:
    """Raise RequestError naming the field if `params` cannot be used with `vocab` ids."""

    def refuse(param: str, rule: str, value: object) -> None:
        raise RequestError(f"{param} must be {rule}, not {value}.", param=param)

    def in_range(param: str, low: float, high: float, rule: str) -> None:
        value = getattr(params, param)
        if not (math.isfinite(value) and low <= value <= high):
            refuse(param, rule, value)

    if params.max_tokens < 1:
        refuse("max_tokens", "at least 1", params.max_tokens)
    if not 0 <= params.min_tokens <= params.max_tokens:
        refuse("min_tokens", "between 0 and max_tokens", params.min_tokens)
    in_range("temperature", 0.0, MAX_TEMPERATURE, f"between 0 and {MAX_TEMPERATURE:g}")
    if params.top_k < 0:
        refuse("top_k", "0 (off) or more", params.top_k)
    in_range("top_p", 0.0, 1.0, "between 0 and 1")
    in_range("min_p", 0.0, 1.0, "between 0 and 1")
    if not (math.isfinite(params.repetition_penalty) and params.repetition_penalty > 0):
        refuse("repetition_penalty", "a positive number", params.repetition_penalty)
    in_range("presence_penalty", -2.0, 2.0, "between -2 and 2")
    in_range("frequency_penalty", -2.0, 2.0, "between -2 and 2")
    if not 0 <= params.seed < MAX_SEED:
        refuse("seed", "an integer from 0 to 2^64 - 1", params.seed)
    if len(params.logit_bias) > MAX_BIAS_ENTRIES:
        refuse("logit_bias", f"at most {MAX_BIAS_ENTRIES} entries", len(params.logit_bias))
    for token, bias in params.logit_bias:
        if not 0 <= token < vocab:
            refuse("logit_bias", f"keyed by token ids from 0 to {vocab - 1}", token)
        if not (math.isfinite(bias) and abs(bias) <= BIAS_LIMIT):
            refuse("logit_bias", f"between -{BIAS_LIMIT:g} and {BIAS_LIMIT:g}", bias)
    for token in params.stop_ids:
        if not 0 <= token < vocab:
            refuse("stop_token_ids", f"token ids from 0 to {vocab - 1}", token)
    for param in ("logprobs", "prompt_logprobs"):
        count = getattr(params, param)
        if count is not None and not 0 <= count <= MAX_LOGPROBS:
            refuse(param, f"between 0 and {MAX_LOGPROBS}", count)


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate."""

    id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    choice: int = 0
    """Which of several answers to the same prompt this is; part of the random stream's counter."""
    salt: str = ""
    """Requests share cached prefixes only under an equal salt."""
    grammar: str = ""
    """What the answer must match, in the words of whoever compiles it for the engine; empty: anything."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-softmax of the raw logits: the token itself, then the best alternatives, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class TokenEvent(NamedTuple):
    """What one step produced for one request; the last one has a finish reason. A tuple, since it is made
    for every row in every step.

    `tokens` may be empty (an abort, an error). The end token that finished the sequence is included.
    """

    request_id: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    """One per token, if the request asked for log-probabilities."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    """One per prompt token, None for the first; given once, with the first generated token. What hands events on
    may give them in several pieces (`split`)."""
    cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""
    finish: FinishReason | None = None
    error: str | None = None
    """One sentence, with finish ERROR only."""
    code: str = "generation_failed"
    """With an error: why, for programs."""


def joined(events: Sequence[TokenEvent]) -> TokenEvent:
    """Events of one request as if they had come at once."""
    last = events[-1]
    if len(events) == 1:
        return last
    prompts = [event.prompt_logprobs for event in events if event.prompt_logprobs is not None]
    return TokenEvent(
        last.request_id,
        tuple(token for event in events for token in event.tokens),
        tuple(score for event in events for score in event.logprobs),
        tuple(chain.from_iterable(prompts)) if prompts else None,
        max(event.cached_tokens for event in events),
        last.finish,
        last.error,
        last.code,
    )


def entries(event: TokenEvent) -> int:
    """Log-probabilities that an event holds, those of alternatives included."""
    if not event.logprobs and event.prompt_logprobs is None:
        return 0
    scores = chain(event.logprobs, event.prompt_logprobs or ())
    return sum(1 + len(score.top) for score in scores if score is not None)


def split(event: TokenEvent, most: int) -> Sequence[TokenEvent]:
    """An event in pieces of at most `most` log-probabilities, or those of one token; `joined` undoes it.

    The scores of the prompt come first. The last piece alone ends the request, and has its last token.
    """
    if entries(event) <= most:
        return (event,)
    bare = TokenEvent(event.request_id, cached_tokens=event.cached_tokens)
    pieces = [bare._replace(prompt_logprobs=part) for part in _parts(event.prompt_logprobs or (), most)]
    at = 0
    for part in _parts(event.logprobs, most):
        pieces.append(bare._replace(tokens=event.tokens[at : at + len(part)], logprobs=part))
        at += len(part)
    end = pieces.pop() if at else bare
    tokens = end.tokens + event.tokens[at:]
    return *pieces, event._replace(tokens=tokens, logprobs=end.logprobs, prompt_logprobs=None)


def _parts(scores: tuple[Score, ...], most: int) -> Iterator[tuple[Score, ...]]:
    """Scores of one request, which all have the same number of alternatives, in parts of so many entries."""
    width = max((1 + len(score.top) for score in scores[-1:] if score is not None), default=1)
    step = max(1, most // width)
    return (scores[start : start + step] for start in range(0, len(scores), step))
