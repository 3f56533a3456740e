"""Typed results to the bodies of a chat, whole or in chunks of a stream; and what all bodies share.

A `ChatReply` is one response in the making. `take` is given the news of a choice; a stream gets chunks for them and
keeps nothing, `body` is the whole. Both come from the same parts, so they agree.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmrs_cli.engine.types import FinishReason
from llmrs_cli.server.logprobs import ChatScores, chat_logprobs, prompt_logprobs
from llmrs_cli.server.sse import JsonList
from llmrs_cli.text.events import LogProb, TextEvent, Usage
from llmrs_cli.text.reply import Part, ReplyParser
from llmrs_cli.text.tools import ToolCall

Timings = Mapping[str, float | None]
"""How long an answer took, as `Exchange.timings` gives it."""


def figures(usage: Usage, thought_tokens: int = 0, timings: Timings | None = None) -> dict[str, Any]:
    """The fields of a body that count: OpenAI's usage, and the timings if they were asked for."""
    counts = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": thought_tokens},
    }
    return {"usage": counts} if timings is None else {"usage": counts, "timings": timings}


@dataclass(frozen=True, slots=True)
class Head:
    """What every body and chunk of one response begins with."""

    kind: str
    """chat.completion or text_completion"""
    prefix: str
    model: str
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def fields(self, suffix: str = "") -> dict[str, Any]:
        """id, object, created, model."""
        return {
            "id": f"{self.prefix}-{self.id}",
            "object": self.kind + suffix,
            "created": self.created,
            "model": self.model,
        }


@dataclass(slots=True)
class _Call:
    """A tool call with the id that we gave it."""

    call: ToolCall
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")

    def body(self) -> dict[str, Any]:
        function = {"name": self.call.name, "arguments": self.call.arguments}
        return {"id": self.id, "type": "function", "function": function}


class ChatReply:
    """One response of /v1/chat/completions."""

    def __init__(
        self,
        model: str,
        parsers: Sequence[ReplyParser],
        *,
        prompt_ids: Sequence[int] | None = None,
        logprobs: bool = False,
        one_call: bool = False,
        whole: bool = True,
    ) -> None:
        """A parser per choice. `prompt_ids`: give token ids; `one_call`: further tool calls are dropped;
        `whole`: `body` will be asked for."""
        head = Head("chat.completion", "chatcmpl", model)
        self._head, self._chunk_head = head.fields(), head.fields(".chunk")
        self._prompt_ids = prompt_ids
        self._logprobs = logprobs
        self._prompt_scores: JsonList | None = None
        self._choices = [_ChatChoice(i, parser, one_call, whole) for i, parser in enumerate(parsers)]

    def take(self, index: int, event: TextEvent) -> list[dict[str, Any]]:
        """Chunks that tell of `event`; keeps what it holds. The prompt's index is always 0."""
        choice = self._choices[event.choice]
        if event.prompt_logprobs and not event.choice:
            self._prompt_scores = self._prompt_scores or JsonList()
            self._prompt_scores.add(prompt_logprobs(event.prompt_logprobs))
        begun = choice.begun
        delta, scores = choice.take(event)
        if choice.whole:
            return []
        chunks = [] if begun else [self._chunk(choice, {"role": "assistant", "content": ""})]
        if delta or scores or (event.token_ids and self._prompt_ids is not None):
            extra = self._extra(chat_logprobs(scores), event.token_ids)
            chunks.append(self._chunk(choice, delta, extra))
        if event.finish_reason is not None:
            chunks.append(self._chunk(choice, {}, {"finish_reason": choice.finish_reason}))
        return chunks

    def last_chunk(self, usage: Usage, timings: Timings | None = None) -> dict[str, Any]:
        """The last chunk of a stream whose client asked for figures."""
        return {**self._chunk_head, "choices": [], **self._figures(usage, timings)}

    def body(self, usage: Usage, timings: Timings | None = None) -> dict[str, Any]:
        """The whole response."""
        body = {
            **self._head,
            "choices": [self._choice_body(choice) for choice in self._choices],
            **self._figures(usage, timings),
        }
        if self._prompt_scores is not None:
            body["prompt_logprobs"] = self._prompt_scores
        if self._prompt_ids is not None:
            body["prompt_token_ids"] = list(self._prompt_ids)
        return body

    def _figures(self, usage: Usage, timings: Timings | None) -> dict[str, Any]:
        return figures(usage, sum(choice.thought_tokens for choice in self._choices), timings)

    def _choice_body(self, choice: _ChatChoice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "message": choice.message(),
            "finish_reason": choice.finish_reason,
            **self._extra(choice.scores.whole(), choice.token_ids),
        }

    def _extra(self, scores: dict[str, Any], token_ids: Sequence[int]) -> dict[str, Any]:
        extra: dict[str, Any] = {"logprobs": scores if self._logprobs else None}
        if self._prompt_ids is not None:
            extra["token_ids"] = list(token_ids)
        return extra

    def _chunk(
        self, choice: _ChatChoice, delta: dict[str, Any], extra: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        told = {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}
        head = dict(self._chunk_head)
        if self._prompt_ids is not None and "role" in delta:
            head["prompt_token_ids"] = list(self._prompt_ids)
        return {**head, "choices": [{**told, **(extra or {})}]}


class _ChatChoice:
    """What one choice of a chat has come to."""

    def __init__(self, index: int, parser: ReplyParser, one_call: bool, whole: bool) -> None:
        self.index = index
        self.begun = False
        self.scores = ChatScores()
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self._parser = parser
        self._one_call = one_call
        self.whole = whole
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[_Call] = []

    @property
    def thought_tokens(self) -> int:
        return self._parser.thought_tokens

    def take(self, event: TextEvent) -> tuple[dict[str, Any], Sequence[LogProb]]:
        """The delta and the scores of an event."""
        self.begun = True
        if self.whole:
            self.scores.add(event.logprobs)
            self.token_ids += event.token_ids
        parts = [self._parser.push(event.text, event.token_ids)]
        if event.finish_reason is not None:
            parts.append(self._parser.finish())
        delta = self._delta(parts)
        if event.finish_reason is not None:
            called = self._calls and event.finish_reason is FinishReason.STOP
            self.finish_reason = "tool_calls" if called else event.finish_reason.value
        return delta, event.logprobs

    def message(self) -> dict[str, Any]:
        """The whole of it."""
        content = "".join(self._content)
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = [call.body() for call in self._calls]
            message["content"] = content or None
        return message

    def _delta(self, parts: Sequence[Part]) -> dict[str, Any]:
        reasoning = "".join(part.reasoning for part in parts)
        content = "".join(part.content for part in parts)
        calls = self._new_calls([call for part in parts for call in part.calls])
        if self.whole:
            self._reasoning += [reasoning] if reasoning else []
            self._content.append(content)
        delta: dict[str, Any] = {}
        if reasoning:
            delta["reasoning_content"] = reasoning
        if content:
            delta["content"] = content
        if calls:
            delta["tool_calls"] = calls
        return delta

    def _new_calls(self, calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
        room = 1 - len(self._calls) if self._one_call else len(calls)
        first = len(self._calls)
        self._calls += [_Call(call) for call in calls[: max(room, 0)]]
        return [{"index": first + i, **call.body()} for i, call in enumerate(self._calls[first:])]
