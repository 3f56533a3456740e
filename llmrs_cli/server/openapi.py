"""The OpenAPI 3.1 description of the server, made of the tables in `schema`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmrs_cli import __version__
from llmrs_cli.server.fields import Table, body_schema
from llmrs_cli.server.schema import CHAT, COMPLETION, DETOKENIZE, RENDER, RESPONSE, TOKENIZE
from llmrs_cli.server.security import PUBLIC

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}
EVENT = {
    "type": "object",
    "required": ["data"],
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
}
"""Of a stream: one of those that it is made of."""
POSTS: tuple[tuple[str, str, Table, bool], ...] = (
    ("/v1/chat/completions", "Answer a conversation", CHAT, True),
    ("/v1/chat/completions/render", "The prompt that a conversation becomes", RENDER, False),
    ("/v1/completions", "Continue a text", COMPLETION, True),
    ("/v1/responses", "Answer a conversation of items", RESPONSE, True),
    ("/tokenize", "Token ids of a text or a conversation", TOKENIZE, False),
    ("/detokenize", "The text of token ids", DETOKENIZE, False),
)
GETS = (
    ("/v1/models", "The served model"),
    ("/v1/models/{name}", "The served model under one of its names"),
    ("/health/live", "Whether the process is worth keeping"),
    ("/health/ready", "Whether requests are taken now"),
    ("/version", "The version of llmrs"),
)


def document(names: Sequence[str] = (), *, keyed: bool = False) -> dict[str, Any]:
    """The whole description; `names` are those of the served model, `keyed` says whether a key is needed."""
    paths: dict[str, Any] = {
        path: {"post": _post(about, table, streams, names)} for path, about, table, streams in POSTS
    }
    paths |= {path: {"get": _get(path, about, names)} for path, about in GETS}
    return {
        "openapi": "3.1.0",
        "info": {"title": "llmrs", "version": __version__},
        "paths": paths,
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}] if keyed else [],
    }


def _get(path: str, about: str, names: Sequence[str]) -> dict[str, Any]:
    more: dict[str, Any] = {"security": []} if path in PUBLIC else {}
    if path.endswith("{name}"):
        named = {"name": "name", "in": "path", "required": True, "schema": {"enum": list(names)}}
        more["parameters"] = [named]
    return {"summary": about, "responses": _responses(False), **more}


def _post(about: str, table: Table, streams: bool, names: Sequence[str]) -> dict[str, Any]:
    schema = dict(body_schema(table))
    schema["properties"] = {**schema["properties"], "model": {"enum": [*names, None]}}
    content = {"application/json": {"schema": schema}}
    return {
        "summary": about,
        "requestBody": {"required": True, "content": content},
        "responses": _responses(streams),
    }


def _responses(streams: bool) -> dict[str, Any]:
    good: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if streams:
        good["text/event-stream"] = {"schema": EVENT}
    error = {"description": "An error object", "content": {"application/json": {"schema": ERROR}}}
    statuses = ("400", "401", "403", "404", "405", "408", "413", "415", "429", "431", "503")
    return {"200": {"description": "An answer", "content": good}, **dict.fromkeys(statuses, error)}
