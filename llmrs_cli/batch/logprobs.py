"""Log-probabilities of an answer as they are written: the form of OpenAI's chats, or of its completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmrs_cli.batch.records import Shape
from llmrs_cli.text.events import LogProb

LEAST = -9999.0
"""Stands for minus infinity, which JSON does not have; OpenAI's documents use the same number."""


def logprobs_field(shape: Shape, logprobs: Sequence[LogProb]) -> Any:
    """The `logprobs` value of one choice."""
    if shape is Shape.COMPLETION:
        return _completion(logprobs)
    entries = [
        {**_entry(score), "top_logprobs": [_entry(other) for other in score.top]} for score in logprobs
    ]
    return {"content": entries} if shape is Shape.CHAT else entries


def _entry(score: LogProb) -> dict[str, Any]:
    return {"token": score.text, "id": score.token, "logprob": _finite(score), "bytes": list(score.data)}


def _completion(logprobs: Sequence[LogProb]) -> dict[str, Any]:
    return {
        "tokens": [_name(score) for score in logprobs],
        "token_logprobs": [_finite(score) for score in logprobs],
        "top_logprobs": [{_name(other): _finite(other) for other in score.top} for score in logprobs],
    }


def _finite(score: LogProb) -> float:
    return max(score.logprob, LEAST)


def _name(score: LogProb) -> str:
    r"""The text, or `bytes:\xf0` for a piece of a character: a map must keep such pieces apart."""
    if score.text.encode() == score.data:
        return score.text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in score.data)
