"""What one engine can hold, and which requests can therefore never run; nothing here changes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmrs_cli.engine.types import Request, check_params
from llmrs_cli.errors import ContextLengthError, RequestError, UsageError


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What one engine can hold and how much it computes in a step; all but rows and blocks in tokens."""

    rows: int
    """Sequences that run at once."""
    context: int
    """Prompt and answer together."""
    blocks: int
    """KV blocks, shared by all rows."""
    block_size: int
    busy_budget: int
    """Tokens a step while any row decodes: prompts ride along at little cost."""
    idle_budget: int
    """Tokens a step while none does."""
    token_bytes: int = 0
    """Of the KV cache, for each token; 0: not known."""
    cut_from: int = 0
    """The context that would have been, had there been memory for it; 0: it is as it should be."""

    def __post_init__(self) -> None:
        for name in ("rows", "context", "blocks", "block_size"):
            if getattr(self, name) < 1:
                raise UsageError(f"The engine needs at least 1 for {name}, not {getattr(self, name)}.")
        if not self.rows < self.busy_budget <= self.idle_budget:
            raise UsageError(
                f"A step of {self.busy_budget} tokens (busy) and {self.idle_budget} (idle) cannot serve"
                f" {self.rows} rows: the first must exceed the rows, the second the first."
            )

    @property
    def pool_tokens(self) -> int:
        """Tokens whose keys and values the pool can hold."""
        return self.blocks * self.block_size

    def end_of(self, request: Request) -> int:
        """Length at which the request ends: what it asked for, or the end of the context."""
        return min(len(request.prompt_ids) + request.params.max_tokens, self.context)

    def check(self, request: Request) -> None:
        """Raise ContextLengthError if the request could not run even alone.

        An answer that would pass the end of the context is not refused: it ends there with finish
        LENGTH. Whoever wants to refuse it does so before (the text layer, for a limit the user gave).
        """
        prompt, end = len(request.prompt_ids), self.end_of(request)
        if prompt >= self.context:
            raise ContextLengthError(
                f"The prompt has {prompt} tokens; the context holds {self.context}, answer included.",
                limit=self.context,
                prompt=prompt,
                hint="Shorten the prompt or give the engine a larger context.",
            )
        if end - 1 > self.pool_tokens:
            raise ContextLengthError(
                f"A prompt of {prompt} tokens with an answer of up to {end - prompt} can need"
                f" {end - 1} tokens of KV cache; all of it holds {self.pool_tokens}.",
                limit=self.pool_tokens,
                prompt=prompt,
                hint="Shorten the prompt, lower max_tokens or give the engine more memory.",
            )


def check_request(request: Request, limits: EngineLimits, vocab: int) -> None:
    """Raise RequestError or ContextLengthError if an engine of these limits can never serve `request`."""
    check_params(request.params, vocab)
    prompt = request.prompt_ids
    if not prompt:
        raise RequestError("The prompt is empty: it needs at least one token.", param="prompt")
    if (token := _foreign(prompt, vocab)) is not None:
        raise RequestError(
            f"The prompt holds token id {token}; this model has ids from 0 to {vocab - 1}.", param="prompt"
        )
    limits.check(request)


def _foreign(prompt: Sequence[int], vocab: int) -> int | None:
    """A token id that is not one of 0 … vocab - 1, if there is any.

    Looked at as an array, since a prompt may be long and a step cannot begin before.
    """
    try:
        if np.frombuffer(array("I", prompt), np.uint32).max() < vocab:
            return None
    except OverflowError:
        pass  # negative, or far too large
    return next(token for token in prompt if not 0 <= token < vocab)
