"""Plain questions to a running server, and the one thing of each answer that a test looks at."""

from __future__ import annotations

from typing import Any

from tests.helpers.served import Served


def complete(server: Served, prompt: str, **fields: Any) -> dict[str, Any]:
    """The only choice, with the tokens that it took."""
    plain = {"temperature": 0, "repetition_penalty": 1.0, "max_tokens": 12}
    reply = server.post("/v1/completions", {"prompt": prompt, **plain, **fields}).json
    choice: dict[str, Any] = reply["choices"][0]
    return {**choice, "tokens": reply["usage"]["completion_tokens"]}


def pieces(server: Served, prompt: str, **fields: Any) -> list[str]:
    """The same as a stream: its texts, without empty ones."""
    body = {
        "prompt": prompt,
        "temperature": 0,
        "repetition_penalty": 1.0,
        "max_tokens": 12,
        "stream": True,
        **fields,
    }
    texts = [
        choice["text"] for event in server.post("/v1/completions", body).events for choice in event["choices"]
    ]
    return [text for text in texts if text]


def rendered(server: Served, *messages: tuple[str, str], **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": role, "content": content} for role, content in messages], **fields}
    reply: dict[str, Any] = server.post("/v1/chat/completions/render", body).json
    return reply
