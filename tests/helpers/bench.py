"""The server's application over a scripted engine, in this process: requests by hand, step by step."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import MutableMapping
from typing import Any

from llmrs_cli.server.app import build_app
from llmrs_cli.server.service import Service
from llmrs_cli.server.settings import ServerSettings
from llmrs_cli.text.generate import SamplingDefaults, TextEngine
from llmrs_cli.text.template import ChatTemplate
from llmrs_cli.text.tokenizer import Tokenizer
from tests.helpers.byte_tokenizer import CHAT_TEMPLATE, byte_tokenizer_json
from tests.helpers.fake_engine import FakeEngine, Script

Message = MutableMapping[str, Any]


class Client:
    """One request by hand: what was sent to it, and whether it reads or has left."""

    def __init__(self, body: Any, path: str = "/v1/completions") -> None:
        self.sent: list[Message] = []
        self.left = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        self.cut_off = False
        self._inbox: list[Message] = [{"type": "http.request", "body": json.dumps(body).encode()}]
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        self.scope: Message = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "state": {"abort": self._abort},
        }

    async def receive(self) -> Message:
        if self._inbox:
            return self._inbox.pop()
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await self.reads.wait()
        self.sent.append(message)

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent).decode()

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    @property
    def json(self) -> Any:
        """The body of a whole response."""
        return json.loads(self.text)

    @property
    def events(self) -> list[Any]:
        """The events of a stream without [DONE]."""
        blocks = self.text.split("\n\n")
        assert blocks[-2:] == ["data: [DONE]", ""], self.text[-200:]
        return [json.loads(block[6:]) for block in blocks[:-2]]

    def _abort(self) -> None:
        self.cut_off = True


class Bench:
    """An application over a fake engine."""

    def __init__(
        self,
        script: Script,
        *,
        at_once: bool = True,
        template: str | None = CHAT_TEMPLATE,
        tokenizer: bool = True,
        **settings: Any,
    ) -> None:
        """`tokenizer`: whether the model has one; else it knows ids alone."""
        self.engine = FakeEngine(script, at_once=at_once)
        self.service = Service(ServerSettings(("m",), **settings))
        text = TextEngine(
            self.engine,
            tokenizer=Tokenizer(byte_tokenizer_json()) if tokenizer else None,
            template=ChatTemplate({} if template is None else {"default": template}),
            defaults=SamplingDefaults(),
        )
        self.service.open(text)
        self.log = io.StringIO()
        self.app = build_app(self.service, self.log)

    def ask(self, client: Client) -> asyncio.Task[None]:
        return asyncio.ensure_future(self.app(client.scope, client.receive, client.send))

    async def until_asked(self) -> None:
        """Until a request has reached the engine."""
        while not self.engine.requests:
            await asyncio.sleep(0.001)
