"""/v1/chat/completions and its rendering alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from llmrs_cli.server.answers import ChatReply, Timings
from llmrs_cli.server.bridge import Answers, News
from llmrs_cli.server.budget import within_budget, within_scores
from llmrs_cli.server.exchange import Exchange
from llmrs_cli.server.fields import read_fields
from llmrs_cli.server.gate import Place
from llmrs_cli.server.schema import RENDER
from llmrs_cli.server.service import salt_of
from llmrs_cli.server.translate import (
    ChatRequest,
    chat_request,
    continue_last,
    template_arguments,
)
from llmrs_cli.text.generate import Prompt, TextEngine
from llmrs_cli.text.grammar import strict_calls, tool_calls
from llmrs_cli.text.reasoning import ReasoningSplitter, ThoughtTokens, opening
from llmrs_cli.text.reply import ReplyParser
from llmrs_cli.text.tools import ToolParser, tool_parser


async def chat_completions(exchange: Exchange) -> None:
    """Answer a conversation."""
    async with (
        exchange.admitted(chat_request) as (request, place),
        conversation(exchange, request, place) as (prompt, parsers, answers),
    ):
        reply = ChatReply(
            exchange.service.settings.names[0],
            parsers,
            prompt_ids=prompt.ids if request.delivery.token_ids else None,
            logprobs=request.options.logprobs is not None,
            one_call=not request.parallel_calls,
            whole=not request.delivery.stream,
        )

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


@asynccontextmanager
async def conversation(
    exchange: Exchange, request: ChatRequest, place: Place
) -> AsyncIterator[tuple[Prompt, list[ReplyParser], Answers]]:
    """A conversation being answered: its prompt, a parser per choice, the answers. They end with the block."""
    service = exchange.service
    engine = service.engine
    service.check_model(request.model)
    options = within_budget(request.options, engine.context)
    bound = request.must_call or bool(options.grammar)
    if request.must_call:
        options = replace(options, grammar=_forced_calls(engine, request))
    elif request.may_call_strictly:
        options = replace(options, grammar=strict_calls(engine.tool_style, request.tools))
    place.hold(options.n)
    if options.grammar:
        await service.check_form(options.grammar, request.form_field, exchange.caller)
    prompt = await service.in_thread(_render, engine, request)
    options = within_scores(options, [len(prompt.ids)], engine.context)
    parsers = [_parser(engine, request, prompt, bound=bound) for _ in range(options.n)]
    salt = salt_of(exchange.caller, request.salt)
    async with service.answering([prompt.ids], options, salt) as answers:
        yield prompt, parsers, answers


async def render(exchange: Exchange) -> None:
    """The prompt that a conversation becomes, and nothing more."""
    given = await exchange.read(partial(read_fields, RENDER))
    engine = exchange.service.engine
    exchange.service.check_model(given.get("model"))
    prompt = await exchange.service.in_thread(
        engine.render,
        given["messages"],
        tools=given.get("tools"),
        template_arguments=template_arguments(given),
        continue_last=continue_last(given),
    )
    await exchange.reply({"prompt": prompt.text, "token_ids": list(prompt.ids), "count": len(prompt.ids)})


def _render(engine: TextEngine, request: ChatRequest) -> Prompt:
    return engine.render(
        request.messages,
        tools=request.tools if request.tool_choice != "none" else None,
        template_arguments=request.template_arguments,
        continue_last=request.continue_last,
    )


def _forced_calls(engine: TextEngine, request: ChatRequest) -> str:
    """The grammar of an answer that must call a tool: any of them, or the one that is named."""
    tools = [tool for tool in request.tools if request.tool_choice in ("required", tool["function"]["name"])]
    several = request.parallel_calls and request.tool_choice == "required"
    return tool_calls(engine.tool_style, tools, several=several)


def _parser(engine: TextEngine, request: ChatRequest, prompt: Prompt, *, bound: bool) -> ReplyParser:
    """What tells an answer's parts apart: thoughts if the model may think first, calls if there are tools."""
    tools = _tool_parser(engine, request)
    if engine.tokenizer is None or not engine.thinks or request.continue_last or bound:
        return ReplyParser(None, tools)
    start = opening(prompt.text)
    return ReplyParser(ReasoningSplitter(start), tools, ThoughtTokens(start, engine.tokenizer.token_bytes))


def _tool_parser(engine: TextEngine, request: ChatRequest) -> ToolParser | None:
    if request.tool_choice == "none":
        return None
    names = {tool["function"]["name"] for tool in request.tools}
    return tool_parser(engine.tool_style, names)
