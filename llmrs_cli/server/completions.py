"""/v1/completions: prompts that are taken as they stand, texts or token ids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from llmrs_cli.server.answers import Timings
from llmrs_cli.server.bridge import Answers, News, Place
from llmrs_cli.server.completion_answers import CompletionReply
from llmrs_cli.server.exchange import Exchange
from llmrs_cli.server.service import salt_of
from llmrs_cli.server.translate import CompletionRequest, completion_request, within_budget
from llmrs_cli.text.events import LogProb
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
    options = within_budget(request.options, engine.context)
    place.hold(len(request.prompts) * options.n)
    if options.grammar:
        await service.check_form(options.grammar, request.form_field)
    prompts = await service.in_thread(_encode, engine, request)
    reply = CompletionReply(
        service.settings.names[0],
        prompts,
        options.n,
        echoes=await service.in_thread(_echoes, engine, request) if request.echo else None,
        only_prompt=request.only_prompt,
        logprobs=options.logprobs is not None,
        token_ids=request.delivery.token_ids,
        whole=not request.delivery.stream,
    )
    async with service.answering(prompts, options, salt_of(exchange.caller, request.salt)) as answers:

        def take(news: News) -> Sequence[Any]:
            index, event = news
            scores = _scores(engine, prompts[index], answers, index) if request.echo else None
            return reply.take(index, event, scores)

        def timings() -> Timings | None:
            return exchange.timings(answers) if request.delivery.timings else None

        def body() -> Any:
            asked = None if request.echo else [g.prompt_logprobs for g in answers.generations]
            return reply.body(answers.usage(), timings(), asked)

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


def _echoes(engine: TextEngine, request: CompletionRequest) -> list[str]:
    """The text of each prompt: what was sent, or what its ids stand for."""
    decode = engine.tokenizer.decode if engine.tokenizer is not None else (lambda ids: "")
    return [prompt if isinstance(prompt, str) else decode(prompt) for prompt in request.prompts]


def _scores(engine: TextEngine, prompt: Ids, answers: Answers, index: int) -> list[LogProb] | None:
    """Scores of an echoed prompt; nothing predicts its first token, which therefore has none (NaN)."""
    scores = answers.generations[index].prompt_logprobs
    if scores is None:
        return None
    data = b"" if engine.tokenizer is None else engine.tokenizer.token_bytes(prompt[0])
    first = LogProb(prompt[0], data.decode(errors="replace"), data, math.nan)
    return [first, *(score for score in scores[1:] if score is not None)]
