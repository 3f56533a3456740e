"""Log-probabilities as OpenAI's two endpoints write them; JSON has no infinity, so there is a floor.

The functions take the scores of some tokens. What a whole body needs is put together of such parts by `ChatScores`
and `CompletionScores`, each of which is written when it comes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from llmrs_cli.server.sse import JsonList
from llmrs_cli.text.events import LogProb

FLOOR = -9999.0
"""What OpenAI writes for a token that could not come."""


def finite(logprob: float) -> float:
    """A log-probability as JSON can hold it."""
    return logprob if math.isfinite(logprob) else FLOOR


def chat_logprobs(scores: Sequence[LogProb]) -> dict[str, Any]:
    """The `logprobs` of a chat's choice: a list, in which alternatives may have equal texts."""
    return {"content": _content(scores), "refusal": None}


def _content(scores: Sequence[LogProb]) -> list[dict[str, Any]]:
    return [{**_entry(score), "top_logprobs": [_entry(other) for other in score.top]} for score in scores]


class ChatScores:
    """The `logprobs` of a chat's choice as they grow."""

    def __init__(self) -> None:
        self._content = JsonList()

    def add(self, scores: Sequence[LogProb]) -> None:
        """Scores of the next tokens."""
        self._content.add(_content(scores))

    def whole(self) -> dict[str, Any]:
        """What `chat_logprobs` gives for all of them."""
        return {"content": self._content, "refusal": None}


def completion_logprobs(scores: Sequence[LogProb], offset: int = 0) -> dict[str, Any]:
    """The `logprobs` of a completion's choice; `offset` is where its text begins.

    Alternatives are keyed by text, and a token that is no whole text by its bytes, so that none is lost.
    A score that is not a number is that of an echoed prompt's first token: there is none.
    """
    offsets = []
    for score in scores:
        offsets.append(offset)
        offset += len(score.text)
    return {
        "tokens": [_key(score) for score in scores],
        "token_logprobs": [None if math.isnan(score.logprob) else finite(score.logprob) for score in scores],
        "top_logprobs": [None if math.isnan(score.logprob) else _alternatives(score) for score in scores],
        "text_offset": offsets,
    }


class CompletionScores:
    """The `logprobs` of a completion's choice as they grow."""

    def __init__(self) -> None:
        self._offset = 0
        self._lists: dict[str, JsonList] = {name: JsonList() for name in completion_logprobs(())}

    def part(self, scores: Sequence[LogProb]) -> dict[str, Any]:
        """Scores of the next tokens as a stream tells them; nothing is kept but their length."""
        told = completion_logprobs(scores, self._offset)
        self._offset += sum(len(score.text) for score in scores)
        return told

    def add(self, scores: Sequence[LogProb]) -> None:
        """Scores of the next tokens, for the whole."""
        for name, items in self.part(scores).items():
            self._lists[name].add(items)

    def whole(self) -> dict[str, Any]:
        """What `completion_logprobs` gives for all of them."""
        return dict(self._lists)


def prompt_logprobs(scores: Sequence[LogProb | None]) -> list[Any]:
    """vLLM's form: for each prompt token its own score and the best ones, by token id."""

    def one(score: LogProb) -> dict[str, Any]:
        return {"logprob": finite(score.logprob), "decoded_token": score.text}

    return [
        None if score is None else {str(other.token): one(other) for other in (score, *score.top)}
        for score in scores
    ]


def _entry(score: LogProb) -> dict[str, Any]:
    return {"token": score.text, "logprob": finite(score.logprob), "bytes": list(score.data)}


def _alternatives(score: LogProb) -> dict[str, float]:
    return {_key(other): finite(other.logprob) for other in score.top}


def _key(score: LogProb) -> str:
    if "\ufffd" not in score.text:
        return score.text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in score.data)
