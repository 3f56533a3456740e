"""/v1/completions: prompts that are taken as they stand, texts or token ids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from llmrs_cli.engine.types import TokenLogprob
from llmrs_cli.server.answers import Timings
from llmrs_cli.server.bridge import News
from llmrs_cli.server.budget import within_budget, within_scores
from llmrs_cli.server.completion_answers import CompletionReply, Echo
from llmrs_cli.server.exchange import Exchange
from llmrs_cli.server.gate import Place
from llmrs_cli.server.service import salt_of
from llmrs_cli.server.translate import CompletionRequest, completion_request
from llmrs_cli.text.events import named
from llmrs_cli.text.generate import TextEngine

Ids = tuple[int, ...]


async def completions(exchange: Exchange) -> None:
    """Continue one prompt or several."""
    async with exchange.admitted(completion_request) as (request, place):
        await _answer(exchange, request, place)


async def _answer(exchange: Exchange, request: CompletionRequest, place: Place) -> None:
    service = exchange.service
    engine = service.engine
    service.check_model(request.model)
    options = within_budget(request.options, engine.context, len(request.prompts))
    place.hold(len(request.prompts) * options.n)
    if options.grammar:
        await service.check_form(options.grammar, request.form_field, exchange.caller)
    prompts = await service.in_thread(_encode, engine, request)
    options = within_scores(options, [len(prompt) for prompt in prompts], engine.context)
    reply = CompletionReply(
        service.settings.names[0],
        prompts,
        options.n,
        echoes=await service.in_thread(_echoes, engine, request, prompts) if request.echo else None,
        only_prompt=request.only_prompt,
        logprobs=options.logprobs is not None,
        token_ids=request.delivery.token_ids,
        whole=not request.delivery.stream,
    )
    async with service.answering(prompts, options, salt_of(exchange.caller, request.salt)) as answers:

        def take(news: News) -> Sequence[Any]:
            return reply.take(*news)

        def timings() -> Timings | None:
            return exchange.timings(answers) if request.delivery.timings else None

        def body() -> Any:
            return reply.body(answers.usage(), timings())

        def last() -> Sequence[Any]:
            return [reply.last_chunk(answers.usage(), timings())] if request.delivery.with_figures else []

        if request.delivery.stream:
            await exchange.stream(answers, take, last)
        else:
            await exchange.whole(answers, take, body)


def _encode(engine: TextEngine, request: CompletionRequest) -> list[Ids]:
    return [
        engine.encode(prompt, markers=request.markers) if isinstance(prompt, str) else prompt
        for prompt in request.prompts
    ]


def _echoes(engine: TextEngine, request: CompletionRequest, prompts: Sequence[Ids]) -> list[Echo]:
    """Each prompt's text is what was sent, or what its ids stand for."""
    return [
        Echo(
            sent
            if isinstance(sent, str)
            else ""
            if engine.tokenizer is None
            else engine.tokenizer.decode(sent),
            named(TokenLogprob(ids[0], math.nan), engine.tokenizer),
        )
        for sent, ids in zip(request.prompts, prompts, strict=True)
        if ids
    ]
