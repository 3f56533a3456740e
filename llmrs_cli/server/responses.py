"""/v1/responses: text, thoughts and tool calls as items, whole or as OpenAI's typed events. Nothing is stored.

created, in_progress, then for each item
    output_item.added, (content_part.added, text deltas, text done, content_part.done), output_item.done
completed, or incomplete at the limit
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from time import time
from typing import Any

from llmrs_cli.engine.types import FinishReason
from llmrs_cli.server.bridge import Answers, News
from llmrs_cli.server.chat import conversation
from llmrs_cli.server.exchange import Exchange, Framing
from llmrs_cli.server.response_items import named_as_here, response_request
from llmrs_cli.text.events import TextEvent, Usage
from llmrs_cli.text.reply import ReplyParser
from llmrs_cli.text.tools import ToolCall

Event = dict[str, Any]
NAMES = {"message": ("msg", "output_text"), "reasoning": ("rs", "reasoning_text")}
"""Kind of a text item → prefix of its id, type of its part."""


async def responses(exchange: Exchange) -> None:
    """Answer a conversation of items."""
    async with exchange.admitted(response_request) as ((request, repeated), place):
        with named_as_here():
            async with conversation(exchange, request, place) as (_, parsers, answers):
                one_call = not request.parallel_calls
                name = exchange.service.settings.names[0]
                reply = ResponseReply(name, parsers[0], repeated, one_call=one_call)
                await _tell(exchange, reply, answers, stream=request.delivery.stream)


async def _tell(exchange: Exchange, reply: ResponseReply, answers: Answers, *, stream: bool) -> None:
    def take(news: News) -> Sequence[Event]:
        return list(reply.take(news[1]))

    def last() -> Sequence[Event]:
        return [reply.end(answers.usage())]

    if stream:
        framing = Framing(named=True, end=b"", fault=reply.fault)
        await exchange.stream(answers, take, last, framing)
    else:
        await exchange.whole(answers, take, lambda: reply.end(answers.usage())["response"])


class ResponseReply:
    """One response in the making."""

    def __init__(
        self, model: str, parser: ReplyParser, repeated: Mapping[str, Any], *, one_call: bool = False
    ) -> None:
        self._head = {
            "id": _id("resp"),
            "object": "response",
            "created_at": int(time()),
            "model": model,
            **repeated,
        }
        self._parser = parser
        self._one_call = one_call
        self._numbers = count()
        self._items: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        """The text item that is being told; the last of the items."""
        self._begun = False
        self._cut = False

    def take(self, event: TextEvent) -> Iterator[Event]:
        """Events that tell of some news."""
        if not self._begun:
            self._begun = True
            for name in ("created", "in_progress"):
                yield self._event(f"response.{name}", response=self._response("in_progress"))
        parts = [self._parser.push(event.text, event.token_ids)]
        if event.finish_reason is not None:
            parts.append(self._parser.finish())
            self._cut = event.finish_reason is FinishReason.LENGTH
        for part in parts:
            yield from self._text("reasoning", part.reasoning)
            yield from self._text("message", part.content)
            for call in part.calls:
                yield from self._call(call)
        if event.finish_reason is not None:
            if not self._items:
                yield from self._begin("message")
            yield from self._close("incomplete" if self._cut else "completed")

    def end(self, usage: Usage) -> Event:
        """The last event, which holds the whole response."""
        status = "incomplete" if self._cut else "completed"
        return self._event(f"response.{status}", response=self._response(status, usage))

    def fault(self, body: Any) -> Event:
        """The event that tells of an error."""
        error = body["error"]
        return self._event("error", **{name: error[name] for name in ("code", "message", "param")})

    # -- items -----------------------------------------------------------------------------------------

    def _text(self, kind: str, text: str) -> Iterator[Event]:
        if not text:
            return
        if self._open is None or self._open["type"] != kind:
            yield from self._close()
            yield from self._begin(kind)
        assert self._open is not None
        self._open["content"][0]["text"] += text
        extra: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        yield self._event(f"response.{NAMES[kind][1]}.delta", **self._place(), delta=text, **extra)

    def _begin(self, kind: str) -> Iterator[Event]:
        prefix, part_kind = NAMES[kind]
        item: dict[str, Any] = {"id": _id(prefix), "type": kind, "status": "in_progress", "content": []}
        extra: dict[str, Any] = {"role": "assistant"} if kind == "message" else {"summary": []}
        item |= extra
        self._items.append(item)
        self._open = item
        yield self._event("response.output_item.added", output_index=len(self._items) - 1, item=_copy(item))
        part: dict[str, Any] = {"type": part_kind, "text": ""}
        part |= {"annotations": []} if kind == "message" else {}
        item["content"].append(part)
        yield self._event("response.content_part.added", **self._place(), part=dict(part))

    def _close(self, status: str = "completed") -> Iterator[Event]:
        """End the item whose text is being told."""
        if self._open is None:
            return
        item = self._open
        (part,) = item["content"]
        item["status"] = status
        extra: dict[str, Any] = {"logprobs": []} if item["type"] == "message" else {}
        yield self._event(f"response.{part['type']}.done", **self._place(), text=part["text"], **extra)
        yield self._event("response.content_part.done", **self._place(), part=dict(part))
        yield self._event("response.output_item.done", output_index=len(self._items) - 1, item=_copy(item))
        self._open = None

    def _call(self, call: ToolCall) -> Iterator[Event]:
        if self._one_call and any(item["type"] == "function_call" for item in self._items):
            return
        yield from self._close()
        item = {
            "id": _id("fc"),
            "type": "function_call",
            "status": "in_progress",
            "call_id": _id("call"),
            "name": call.name,
            "arguments": "",
        }
        self._items.append(item)
        place = {"item_id": item["id"], "output_index": len(self._items) - 1}
        yield self._event("response.output_item.added", output_index=place["output_index"], item=_copy(item))
        yield self._event("response.function_call_arguments.delta", **place, delta=call.arguments)
        item |= {"arguments": call.arguments, "status": "completed"}
        done = {"name": call.name, "arguments": call.arguments}
        yield self._event("response.function_call_arguments.done", **place, **done)
        yield self._event("response.output_item.done", output_index=place["output_index"], item=_copy(item))

    # -- bodies ----------------------------------------------------------------------------------------

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "sequence_number": next(self._numbers), **fields}

    def _place(self) -> dict[str, Any]:
        assert self._open is not None
        return {"item_id": self._open["id"], "output_index": len(self._items) - 1, "content_index": 0}

    def _response(self, status: str, usage: Usage | None = None) -> dict[str, Any]:
        return {
            **self._head,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": [_copy(item) for item in self._items],
            "usage": None if usage is None else _usage(usage, self._parser.thought_tokens),
        }


def _usage(usage: Usage, thought_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": thought_tokens},
        "total_tokens": usage.total_tokens,
    }


def _copy(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item as it stands now; later text does not reach it."""
    return {
        name: [dict(part) for part in value] if name == "content" else value for name, value in item.items()
    }


def _id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"
