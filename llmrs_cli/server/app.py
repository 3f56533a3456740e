"""The ASGI application: which function answers which path, inside the guard. No logic stands here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TextIO

from starlette.routing import Match, Route

from llmrs_cli.server import openapi
from llmrs_cli.server.bridge import ClientGone
from llmrs_cli.server.chat import chat_completions, render
from llmrs_cli.server.completions import completions
from llmrs_cli.server.exchange import Exchange
from llmrs_cli.server.faults import HttpError
from llmrs_cli.server.log import AccessLog
from llmrs_cli.server.page import page
from llmrs_cli.server.plain import detokenize, embeddings, live, model, models, ready, tokenize, version
from llmrs_cli.server.responses import responses
from llmrs_cli.server.security import App, Guard, Receive, Scope, Send, check_body
from llmrs_cli.server.service import Service

Answer = Callable[[Exchange], Awaitable[None]]

GETS: dict[str, Answer] = {
    "/v1/models": models,
    "/v1/models/{name:path}": model,
    "/health/live": live,
    "/health/ready": ready,
    "/version": version,
}
POSTS: dict[str, Answer] = {
    "/v1/chat/completions": chat_completions,
    "/v1/chat/completions/render": render,
    "/v1/completions": completions,
    "/v1/responses": responses,
    "/v1/embeddings": embeddings,
    "/tokenize": tokenize,
    "/detokenize": detokenize,
}


def build_app(service: Service, log: TextIO | None = None, *, quiet: bool = False) -> App:
    """The application over a service; `log` gets a line per request (stderr by default)."""
    return Guard(_Router(service), service.settings, AccessLog(service.metrics, log, quiet=quiet))


class _Router:
    """Finds the route; paths and methods that do not exist are errors like all others."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._routes = [
            *(Route(path, _Endpoint(service, answer), methods=["GET"]) for path, answer in GETS.items()),
            *(Route(path, _Endpoint(service, answer), methods=["POST"]) for path, answer in POSTS.items()),
            Route("/", _Endpoint(service, _page), methods=["GET"]),
            Route("/metrics", _Endpoint(service, _metrics), methods=["GET"]),
            Route("/openapi.json", _Endpoint(service, _openapi), methods=["GET"]),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        matches = [(route.matches(scope), route) for route in self._routes]
        for (match, child), route in matches:
            if match is Match.FULL:
                scope.update(child)
                scope["route_path"] = route.path
                await route.app(scope, receive, send)
                return
        for (match, _), route in matches:
            if match is Match.PARTIAL:
                allowed = ", ".join(sorted(route.methods or ()))
                raise HttpError(405, f"Use {allowed}.", code="method_not_allowed", headers={"allow": allowed})
        raise HttpError(404, "There is no such path.", code="not_found")


class _Endpoint:
    """A function of an exchange as an ASGI application."""

    def __init__(self, service: Service, answer: Answer) -> None:
        self._service = service
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            check_body(scope)
        try:
            await self._answer(Exchange(self._service, scope, receive, send))
        except ClientGone:
            scope["left"] = True


async def _page(exchange: Exchange) -> None:
    data, policy = page()
    more = ("content-security-policy", policy), ("x-frame-options", "DENY")
    await exchange.text(data, "text/html; charset=utf-8", *more)


async def _metrics(exchange: Exchange) -> None:
    await exchange.text(exchange.service.metrics.text(), "text/plain; version=0.0.4; charset=utf-8")


async def _openapi(exchange: Exchange) -> None:
    settings = exchange.service.settings
    await exchange.reply(openapi.document(settings.names, keyed=bool(settings.keys)))
