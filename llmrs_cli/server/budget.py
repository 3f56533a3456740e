"""How much one request may ask for in all; a limit that the request leaves open is lowered until it fits.

Each field has a limit of its own (`schema`). These are those of the fields together: tokens that may be generated,
and log-probabilities, which cost the server's own process more than anything else that it writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llmrs_cli.errors import RequestError
from llmrs_cli.text.generate import GenerateOptions

CONTEXTS = 4
"""Answers times tokens may fill so many contexts."""
MAX_SCORES = 2**18
"""Log-probabilities of one request, alternatives included: some 20 MiB of JSON."""


def within_budget(options: GenerateOptions, context: int, prompts: int = 1) -> GenerateOptions:
    """Options whose answers together may take no more than a few contexts.

    An absent max_tokens is lowered to that; one that was given and asks for more raises RequestError.
    """
    most = CONTEXTS * context // (options.n * prompts)
    if most >= context:
        return options
    if options.max_tokens is None:
        return replace(options, max_tokens=max(most, 1))
    if min(options.max_tokens, context) > most:
        raise RequestError(
            f"max_tokens, times n and the number of prompts, must be at most {CONTEXTS * context}.",
            code="invalid_value",
            param="max_tokens",
        )
    return options


def within_scores(options: GenerateOptions, lengths: Sequence[int], context: int) -> GenerateOptions:
    """Options whose log-probabilities are no more than `MAX_SCORES`; `lengths`: tokens of each prompt.

    An absent max_tokens is lowered to that; else RequestError is raised.
    """
    left = MAX_SCORES
    if options.prompt_logprobs is not None:
        left -= options.n * sum(lengths) * (1 + options.prompt_logprobs)
        if left < 0:
            raise _too_many("prompt_logprobs", MAX_SCORES - left)
    if options.logprobs is None:
        return options
    each = options.n * len(lengths) * (1 + options.logprobs)
    longest = min(options.max_tokens or context, context - min(lengths))
    if each * longest <= left:
        return options
    if options.max_tokens is not None or each > left:
        raise _too_many("logprobs", MAX_SCORES - left + each * longest)
    return replace(options, max_tokens=left // each)


def _too_many(param: str, asked: int) -> RequestError:
    return RequestError(
        f"With {param}, as many tokens come to {asked:,} log-probabilities; a request may have {MAX_SCORES:,}.",
        code="invalid_value",
        param=param,
        hint="Ask for fewer alternatives, tokens or prompts.",
    )
