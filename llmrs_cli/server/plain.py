"""The routes that generate nothing: models, tokens, health, metrics, version."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from llmrs_cli import __version__
from llmrs_cli.errors import ModelError, RequestError
from llmrs_cli.server.exchange import Exchange
from llmrs_cli.server.faults import HttpError, unavailable
from llmrs_cli.server.fields import read_fields
from llmrs_cli.server.schema import DETOKENIZE, TOKENIZE
from llmrs_cli.server.service import Phase, Service
from llmrs_cli.server.sse import encode
from llmrs_cli.server.translate import template_arguments
from llmrs_cli.text.generate import TextEngine


async def models(exchange: Exchange) -> None:
    """The served model, under each of its names."""
    service, engine = exchange.service, exchange.service.engine
    entries = [_entry(service, engine, name) for name in service.settings.names]
    await exchange.reply({"object": "list", "data": entries})


async def model(exchange: Exchange) -> None:
    """One of those entries."""
    service, engine, name = exchange.service, exchange.service.engine, exchange.parameter("name")
    if not name:
        raise HttpError(404, "There is no such path.", code="not_found")
    service.check_model(name)
    await exchange.reply(_entry(service, engine, name))


def _entry(service: Service, engine: TextEngine, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "llmrs",
        "max_model_len": engine.context,
        "vocab_size": engine.vocab,
    }


async def tokenize(exchange: Exchange) -> None:
    """Token ids of a text or a conversation."""
    given = await exchange.read(partial(read_fields, TOKENIZE))
    engine = exchange.service.engine
    exchange.service.check_model(given.get("model"))
    if ("prompt" in given) == ("messages" in given):
        raise RequestError("Give one of prompt and messages.", code="missing_field", param="prompt")
    await exchange.text(await exchange.service.in_thread(_tokenized, engine, given), "application/json")


async def detokenize(exchange: Exchange) -> None:
    """The text of token ids, control tokens included."""
    given = await exchange.read(partial(read_fields, DETOKENIZE))
    engine = exchange.service.engine
    exchange.service.check_model(given.get("model"))
    await exchange.reply({"prompt": await exchange.service.in_thread(_text, engine, given["tokens"])})


async def live(exchange: Exchange) -> None:
    """Whether the process is worth keeping: 200 unless the engine has failed."""
    phase = exchange.service.phase
    if phase is Phase.FAILED:
        raise unavailable("The engine has failed.", "engine_fault")
    await exchange.reply({"status": phase.value})


async def ready(exchange: Exchange) -> None:
    """Whether requests are taken now."""
    assert exchange.service.engine is not None
    await exchange.reply({"status": exchange.service.phase.value})


async def version(exchange: Exchange) -> None:
    """Ours."""
    await exchange.reply({"version": __version__})


async def embeddings(exchange: Exchange) -> None:
    """Refused by name."""
    raise HttpError(400, "This server generates text; it makes no embeddings.", code="unsupported")


def _text(engine: TextEngine, tokens: Sequence[int]) -> str:
    if engine.tokenizer is None:
        raise ModelError("This model has no tokenizer.")
    if max(tokens, default=0) >= engine.vocab:
        raise RequestError(
            f"Token id {max(tokens)} is beyond the vocabulary of {engine.vocab}.",
            code="invalid_value",
            param="tokens",
        )
    return engine.tokenizer.decode(tokens, specials=True)


def _tokenized(engine: TextEngine, given: dict[str, Any]) -> bytes:
    """The answer as JSON: a text of 4 MiB has as many ids as would hold up the event loop."""
    ids = _tokens(engine, given)
    return encode({"tokens": ids, "count": len(ids), "max_model_len": engine.context})


def _tokens(engine: TextEngine, given: dict[str, Any]) -> tuple[int, ...]:
    if "messages" in given:
        prompt = engine.render(
            given["messages"], tools=given.get("tools"), template_arguments=template_arguments(given)
        )
        return prompt.ids
    if engine.tokenizer is None:
        raise ModelError("This model has no tokenizer.")
    return engine.tokenizer.encode(
        given["prompt"],
        bos=given.get("add_special_tokens", True),
        markers=given.get("parse_special", False),
    )
