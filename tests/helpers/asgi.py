"""Asks an ASGI application directly: no socket, no process."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping, Sequence
from typing import Any

from llmrs_cli.server.security import App
from tests.helpers.served import Reply

Headers = Sequence[tuple[str, str]]
LOCAL: Headers = (("Host", "localhost:8000"),)


def ask(
    app: App, method: str, path: str, body: bytes = b"", headers: Headers = LOCAL, client: str = "127.0.0.1"
) -> Reply:
    """The application's whole response."""
    sent: list[MutableMapping[str, Any]] = []
    inbox: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> MutableMapping[str, Any]:
        if inbox:
            return inbox.pop(0)
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers],
        "client": (client, 5),
        "state": {"abort": lambda: None},
    }
    asyncio.run(_within(app, scope, receive, send))
    start, *rest = sent
    told = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
    return Reply(start["status"], told, b"".join(message.get("body", b"") for message in rest))


async def _within(app: App, *arguments: Any) -> None:
    await asyncio.wait_for(app(*arguments), 60)
