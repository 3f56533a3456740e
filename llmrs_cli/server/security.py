"""Who may come in, and how much of a request is read: one gate before every route.

In order: size of the header, Host, Origin, key; then, where there is a route that takes a body, its kind and its
length (`check_body`). A page in a browser can reach this machine's loopback address, by its own name for it
(rebinding) or with a form; so names are checked, pages of other origins are refused unless they are allowed, and only
JSON is read. Every route but three needs the key, if there is one; who has none hears the same everywhere, whatever
else is wrong with the request and whether or not there is such a route.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from llmrs_cli.server.faults import HttpError, as_http
from llmrs_cli.server.log import AccessLog
from llmrs_cli.server.settings import (
    MAX_BODY,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_TARGET,
    ServerSettings,
    is_loopback,
)
from llmrs_cli.server.sse import encode

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]

PUBLIC = frozenset({"/", "/health/live", "/health/ready"})
"""Routes that need no key: none of them says anything about anybody's requests."""
ALWAYS: tuple[Header, ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
)
CLOSE = {"connection": "close"}
"""Of an answer after which nothing sensible can come on its connection."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: App, settings: ServerSettings, log: AccessLog) -> None:
        self._app = app
        self._settings = settings
        self._log = log
        self._hosts = {"localhost", settings.host.lower(), *map(str.lower, settings.allowed_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = _headers(scope)
        request_id = _request_id(headers)
        scope["request_id"] = request_id
        extra = [*ALWAYS, (b"x-request-id", request_id), *self._cors(headers)]
        told = _Told(send, extra)
        with self._log.request(scope, told):
            try:
                if self._is_preflight(scope, headers):
                    await _preflight(headers, told)
                    return
                self._admit(scope, headers)
                scope["caller"] = self._caller(scope, headers)
                await self._app(scope, _counted(receive), told)
            except Exception as error:
                await self._refuse(error, told, scope)

    async def _refuse(self, error: Exception, told: _Told, scope: Scope) -> None:
        fault = as_http(error)
        scope["figures"] = {**scope.get("figures", {}), "error": fault.code}
        if fault.status == 500 and fault.code == "internal_error":
            self._log.fault(scope, error)
        if told.status is None:
            await send_json(told, fault.status, fault.body, fault.headers)
        else:
            raise error

    # -- the checks ------------------------------------------------------------------------------------

    def _admit(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size > MAX_HEADER_BYTES or len(scope["headers"]) > MAX_HEADERS:
            raise header_too_large()
        if len(scope.get("raw_path", b"")) + len(scope.get("query_string", b"")) > MAX_TARGET:
            raise HttpError(414, "The address of the request is too long.", code="target_too_long")
        if not self._host_is_ours(headers.get(b"host", b"")):
            raise HttpError(
                403, "The server does not answer to this Host; --allowed-host adds one.", code="host_refused"
            )
        if not self._origin_is_allowed(headers):
            raise HttpError(403, "Pages of this Origin may not use the server.", code="origin_refused")

    def _host_is_ours(self, host: bytes) -> bool:
        """A name of ours, or an address: a page cannot make a name of its own into an address."""
        match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(:\d{1,5})?", host.decode("latin-1").lower())
        if match is None:
            return False
        name = match[1].strip("[]")
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._hosts
        return True

    def _origin_is_allowed(self, headers: Mapping[bytes, bytes]) -> bool:
        origin = headers.get(b"origin")
        if origin is None or origin.decode("latin-1") in self._settings.origins:
            return True
        return origin in (b"http://" + headers[b"host"], b"https://" + headers[b"host"])

    def _caller(self, scope: Scope, headers: Mapping[bytes, bytes]) -> bytes:
        """The key that came with the request, b"" if none is needed. Raises HttpError 401."""
        keys = self._settings.keys
        if not keys or scope["path"] in PUBLIC or self._is_local_metrics(scope):
            return b""
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        matches = [hmac.compare_digest(given.strip(), key) for key in keys]
        if scheme.lower() != b"bearer" or not any(matches):
            raise HttpError(
                401,
                "A valid API key is needed.",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        return keys[matches.index(True)]

    def _is_local_metrics(self, scope: Scope) -> bool:
        client = scope.get("client")
        return scope["path"] == "/metrics" and client is not None and is_loopback(client[0])

    # -- pages of other origins ------------------------------------------------------------------------

    def _cors(self, headers: Mapping[bytes, bytes]) -> list[Header]:
        origin = headers.get(b"origin", b"")
        if origin.decode("latin-1") not in self._settings.origins:
            return []
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", b"x-request-id, retry-after"),
            (b"vary", b"origin"),
        ]

    def _is_preflight(self, scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
        asks = scope["method"] == "OPTIONS" and b"access-control-request-method" in headers
        return asks and headers.get(b"origin", b"").decode("latin-1") in self._settings.origins


class _Told:
    """`send` that adds our headers and remembers what was said."""

    def __init__(self, send: Send, extra: list[Header]) -> None:
        self._send = send
        self._extra = extra
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), *self._extra]}
        await self._send(message)


async def send_json(send: Send, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
    """A whole JSON response."""
    data = encode(body)
    fields = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    fields += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": data})


async def _preflight(headers: Mapping[bytes, bytes], send: Send) -> None:
    asked = headers.get(b"access-control-request-headers", b"")
    fields = [
        (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
        (b"access-control-allow-headers", asked if _is_header_list(asked) else b""),
        (b"access-control-max-age", b"600"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": fields})
    await send({"type": "http.response.body", "body": b""})


def _is_header_list(value: bytes) -> bool:
    return re.fullmatch(rb"[A-Za-z0-9_, -]*", value) is not None


def _headers(scope: Scope) -> dict[bytes, bytes]:
    """Names in lower case; of a name that is given twice the last, but two Hosts are none."""
    headers = dict(scope["headers"])
    if sum(name == b"host" for name, _ in scope["headers"]) != 1:
        headers[b"host"] = b""
    return headers


def _request_id(headers: Mapping[bytes, bytes]) -> bytes:
    """The client's id if it is harmless, else one of ours."""
    given = headers.get(b"x-request-id", b"")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(12).encode()


def check_body(scope: Scope) -> None:
    """Raise HttpError 415, 400 or 413 if the header announces a body that no route reads."""
    headers = _headers(scope)
    kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if kind != b"application/json":
        raise HttpError(415, "Send the header Content-Type: application/json.", code="content_type")
    if headers.get(b"content-encoding", b"identity").lower() not in (b"", b"identity"):
        raise HttpError(415, "Compressed bodies are not read.", code="content_encoding")
    if b"content-length" in headers and b"transfer-encoding" in headers:
        raise HttpError(
            400, "Give the length of the body in one way.", code="ambiguous_length", headers=CLOSE
        )
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length[:20]) > MAX_BODY:
        raise _too_large()


def _counted(receive: Receive) -> Receive:
    """`receive` that counts what arrives, whatever the header says."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > MAX_BODY:
            raise _too_large()
        return message

    return counted


def header_too_large() -> HttpError:
    """More than a header may have."""
    return HttpError(431, "The header of the request is too large.", code="header_too_large", headers=CLOSE)


def _too_large() -> HttpError:
    return HttpError(413, f"The body may have at most {MAX_BODY} bytes.", code="body_too_large")
