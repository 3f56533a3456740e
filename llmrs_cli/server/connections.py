"""Connections: uvicorn with our own limits. What travels over a connection is not looked at here."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from llmrs_cli.server import settings
from llmrs_cli.server.faults import HttpError
from llmrs_cli.server.pace import Pace
from llmrs_cli.server.security import header_too_large
from llmrs_cli.server.settings import MAX_BODY, MAX_CONNECTIONS, MAX_HEADER_BYTES, MAX_HEADERS, MAX_TARGET
from llmrs_cli.server.sse import encode

_BLANK_LINE = re.compile(rb"\n\r?\n")


def http_server(app: Any) -> uvicorn.Server:
    """A server of `app`, for sockets that its caller opens; `should_exit` ends it."""
    config = uvicorn.Config(
        app,
        http=partial(Connection, pace=Pace()),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        limit_concurrency=MAX_CONNECTIONS + 1,  # one that comes is counted before it is refused
        timeout_keep_alive=30,
        timeout_graceful_shutdown=1,
    )
    return _Server(config)


class _Server(uvicorn.Server):
    """Signals are ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Reader(h11.Connection):
    """Looks how large a header is before it is read: h11 by itself reads one of any size that comes in one piece, and
    ten thousand lines would hold the loop for a tenth of a second."""

    def next_event(self) -> Any:
        if self.their_state is h11.IDLE:
            data = self.trailing_data[0]
            end = _BLANK_LINE.search(data)
            size = len(data) if end is None else end.end()
            if size > MAX_HEADER_BYTES + MAX_TARGET or data.count(b"\n", 0, size) > MAX_HEADERS + 2:
                raise h11.RemoteProtocolError("The header is too large.", error_status_hint=431)
        return super().next_event()


class Connection(H11Protocol):
    """A connection whose client must send each header in time, and which its request can cut off.

    A request may be answered before its body has come, as one is for which there is no room. What still comes of
    it is dropped unread, up to the length that a body may have, so that a client which sends first and reads then
    finds its answer.
    """

    def __init__(
        self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None, *, pace: Pace
    ) -> None:
        super().__init__(config, server_state, dict(app_state), _loop)
        self.conn = Reader(h11.SERVER, MAX_HEADER_BYTES)
        self._pace = pace
        self._patience: asyncio.TimerHandle | None = None
        self._held: list[bytes] = []
        """What has come and waits for its turn to be read."""
        self._dropped = 0
        """Bytes of a body that nobody reads."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state["abort"] = transport.abort
        self.app_state["put"] = self._put
        self._be_patient()

    def data_received(self, data: bytes) -> None:
        self._held.append(data)
        if len(self._held) == 1:
            self._read()

    def _read(self) -> None:
        if not self._held or self.transport.is_closing():
            return
        if not self._pace.free():
            self.loop.call_soon(self._read)
            return
        data, self._held = b"".join(self._held), []
        self._count_dropped(len(data))
        super().data_received(data)
        self._be_patient()

    def _count_dropped(self, size: int) -> None:
        answered = self.cycle is not None and self.cycle.response_complete
        self._dropped = self._dropped + size if answered and self.conn.their_state is h11.SEND_BODY else 0
        if self._dropped > MAX_BODY:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._held.clear()
        if self._patience is not None:
            self._patience.cancel()

    def _put(self, data: bytes) -> bool:
        """Write a piece of a chunked body, past layers that would look at each piece anew. False, and nothing is
        written, if the body is not chunked or the client has to read first."""
        cycle = self.cycle
        if (
            cycle is None
            or cycle.disconnected
            or self.flow.write_paused
            or cycle.scope["http_version"] != "1.1"
        ):
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def send_400_response(self, msg: str) -> None:
        """Refuse what h11 could not read, with OpenAI's error object like everything else, and hang up."""
        cause = sys.exception()
        large = isinstance(cause, h11.RemoteProtocolError) and cause.error_status_hint == 431
        fault = header_too_large() if large else HttpError(400, msg, code="invalid_http")
        body = encode(fault.body)
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
        }
        reason = HTTPStatus(fault.status).phrase
        response = h11.Response(status_code=fault.status, headers=[*headers.items()], reason=reason)
        with contextlib.suppress(h11.LocalProtocolError):  # an answer has begun: it is cut off
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _be_patient(self) -> None:
        """While a header is on its way, a clock runs that only its end stops."""
        if self.cycle is not None and not self.cycle.response_complete:
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None
        elif self._patience is None and self.timeout_keep_alive_task is None:
            self._patience = self.loop.call_later(settings.HEADER_SECONDS, self.transport.abort)
