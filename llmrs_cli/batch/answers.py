"""What the engine answered, as a row's output wants it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmrs_cli.batch.logprobs import logprobs_field
from llmrs_cli.batch.records import Shape
from llmrs_cli.batch.results import Answer, Choice

if TYPE_CHECKING:
    from llmrs_cli.text.generate import GenerationResult


def answer_for(shape: Shape, result: GenerationResult, *, as_json: bool = False) -> Answer:
    """All choices of one result, their log-probabilities in the form of `shape`; see `Answer.is_json`."""
    choices = [
        Choice(
            choice.text,
            choice.token_ids,
            choice.finish_reason.value,
            logprobs_field(shape, choice.logprobs) if choice.logprobs else None,
        )
        for choice in result.choices
    ]
    return Answer(choices, result.usage.prompt_tokens, result.usage.cached_tokens, as_json)
