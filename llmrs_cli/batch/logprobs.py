"""Log-probabilities of an answer as they are written: the form of OpenAI's chats, or of its completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmrs_cli.batch.records import Shape
from llmrs_cli.text.events import LogProb


def logprobs_field(shape: Shape, logprobs: Sequence[LogProb]) -> Any:
    """The `logprobs` value of one choice."""
    if shape is Shape.COMPLETION:
        return _completion(logprobs)
    entries = [
        {**_entry(score), "top_logprobs": [_entry(other) for other in score.top]} for score in logprobs
    ]
    return {"content": entries} if shape is Shape.CHAT else entries


def _entry(score: LogProb) -> dict[str, Any]:
    return {"token": score.text, "id": score.token, "logprob": score.logprob, "bytes": list(score.data)}


def _completion(logprobs: Sequence[LogProb]) -> dict[str, Any]:
    return {
        "tokens": [score.text for score in logprobs],
        "token_logprobs": [score.logprob for score in logprobs],
        "top_logprobs": [{other.text: other.logprob for other in score.top} for score in logprobs],
    }
