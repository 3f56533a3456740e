"""The gate before every route: names, origins, keys. No route but three is open when there is a key."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest

from llmrs_cli.server.app import GETS, POSTS, build_app
from llmrs_cli.server.log import AccessLog
from llmrs_cli.server.security import PUBLIC, App, Guard
from llmrs_cli.server.service import Service
from llmrs_cli.server.settings import ServerSettings, is_loopback
from tests.helpers.asgi import LOCAL, Headers, ask

KEY = "a-key-of-mine"
BEARER = ("Authorization", f"Bearer {KEY}")
PAGE = "https://page.example"


def app(**settings: Any) -> App:
    """An application whose model is still loading: whoever gets past the gate hears 503."""
    return build_app(Service(ServerSettings(("m",), **settings)), io.StringIO())


def locked(**settings: Any) -> App:
    return app(keys=(b"another-key", KEY.encode()), **settings)


def status(one: App, headers: Headers, path: str = "/v1/models", method: str = "GET") -> int:
    return ask(one, method, path, headers=headers).status


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:8000", "[::1]:8000", "192.168.7.7"])
def test_loopback_names_and_addresses_are_ours(host: str) -> None:
    assert status(app(), [("Host", host)]) == 503


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "",
        "localhost:80:80",
        "a b",
        "127.0.0.1.evil",
        "[::1",
        "localhost@x",
        "x.local",
    ],
)
def test_any_other_name_is_refused(host: str) -> None:
    reply = ask(app(), "GET", "/v1/models", headers=[("Host", host)])
    assert (reply.status, reply.error["code"]) == (403, "host_refused")


def test_no_host_and_two_hosts_are_refused() -> None:
    assert status(app(), []) == 403
    assert status(app(), [("Host", "localhost"), ("Host", "localhost")]) == 403


def test_a_further_name_can_be_allowed() -> None:
    assert status(app(allowed_hosts=("box.lan",)), [("Host", "BOX.lan:8000")]) == 503


@pytest.mark.parametrize("origin", [PAGE, "null", "http://localhost:3000", "http://localhost:8000.evil"])
def test_pages_of_other_origins_are_refused(origin: str) -> None:
    reply = ask(app(), "GET", "/v1/models", headers=[*LOCAL, ("Origin", origin)])
    assert (reply.status, reply.error["code"]) == (403, "origin_refused")
    assert "access-control-allow-origin" not in reply.headers


def test_our_own_page_may_use_us() -> None:
    assert status(app(), [*LOCAL, ("Origin", "http://localhost:8000")]) == 503


def test_an_allowed_origin_may_and_hears_so_in_errors_too() -> None:
    one = locked(origins=(PAGE,))
    reply = ask(one, "GET", "/v1/models", headers=[*LOCAL, ("Origin", PAGE)])
    assert reply.status == 401
    assert reply.headers["access-control-allow-origin"] == PAGE


def preflight(one: App, origin: str) -> Any:
    asked = [
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "authorization,x-stainless-os"),
    ]
    return ask(one, "OPTIONS", "/v1/chat/completions", headers=[*LOCAL, ("Origin", origin), *asked])


def test_a_preflight_needs_no_key() -> None:
    reply = preflight(locked(origins=(PAGE,)), PAGE)
    assert reply.status == 204
    assert reply.headers["access-control-allow-origin"] == PAGE
    assert reply.headers["access-control-allow-headers"] == "authorization,x-stainless-os"
    assert "access-control-allow-credentials" not in reply.headers


def test_a_preflight_of_another_origin_is_refused() -> None:
    reply = preflight(locked(origins=(PAGE,)), "http://evil.example")
    assert reply.status == 403
    assert "access-control-allow-origin" not in reply.headers


WRONG = [
    "",
    "Bearer",
    "Bearer ",
    f"Bearer {KEY}x",
    f"Bearer {KEY[:-1]}",
    f"Basic {KEY}",
    KEY,
    "Bearer ké\xff",
    "Bearer " + "a" * 9999,
]
PATHS = [
    *GETS,
    *POSTS,
    "/metrics",
    "/openapi.json",
    "/nothing",
    "//v1/models",
    "/health/live/",
    "/v1/../health/live",
]


@pytest.mark.parametrize("path", [path for path in PATHS if path not in PUBLIC])
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "DELETE"])
def test_every_route_needs_the_key(path: str, method: str) -> None:
    headers = [*LOCAL, ("Content-Type", "application/json")]
    reply = ask(locked(), method, path, b"{}", headers, client="10.0.0.9")
    assert reply.status == 401
    assert reply.error["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    "header", [("Content-Type", "text/plain"), ("Content-Length", "5000000"), ("Content-Encoding", "gzip")]
)
@pytest.mark.parametrize("path", ["/v1/completions", "/nothing"])
def test_who_has_no_key_hears_of_nothing_else(path: str, header: tuple[str, str]) -> None:
    assert status(locked(), [*LOCAL, header], path, "POST") == 401


@pytest.mark.parametrize(("path", "expected"), [("/version", 405), ("/nothing", 404), ("/tokenize", 415)])
def test_a_path_is_looked_at_before_the_kind_of_a_body(path: str, expected: int) -> None:
    assert status(app(), [*LOCAL, ("Content-Type", "text/plain")], path, "POST") == expected


@pytest.mark.parametrize("header", WRONG)
def test_a_wrong_key_is_a_wrong_key_in_the_same_words(header: str) -> None:
    missing = ask(locked(), "GET", "/v1/models")
    wrong = ask(locked(), "GET", "/v1/models", headers=[*LOCAL, ("Authorization", header)])
    assert wrong.status == 401
    assert wrong.data == missing.data


def test_any_of_the_keys_opens() -> None:
    assert status(locked(), [*LOCAL, BEARER]) == 503
    assert status(locked(), [*LOCAL, ("authorization", "bearer another-key")]) == 503


def test_health_is_public() -> None:
    assert status(locked(), LOCAL, "/health/live") == 200
    reply = ask(locked(), "GET", "/health/ready")
    assert (reply.status, reply.error["code"]) == (503, "loading")
    assert reply.headers["retry-after"] == "2"


def test_metrics_are_open_to_this_machine_alone() -> None:
    assert ask(locked(), "GET", "/metrics").status == 200
    assert ask(locked(), "GET", "/metrics", client="10.0.0.9").status == 401


def test_every_answer_has_an_id_and_is_not_kept() -> None:
    for path in ("/version", "/nothing"):
        headers = ask(app(), "GET", path).headers
        assert headers["x-request-id"]
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"


def test_the_log_is_one_line_of_json_a_request() -> None:
    stream = io.StringIO()
    one = build_app(Service(ServerSettings(("m",))), stream)
    ask(one, "GET", "/v\x1b[31m\n")
    (line,) = stream.getvalue().splitlines()
    record = json.loads(line)
    assert (record["status"], record["path"], record["error"]) == (404, "/v\x1b[31m\n", "not_found")
    assert "\x1b" not in line


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
def test_what_is_no_http_is_not_listened_to(kind: str) -> None:
    async def scene() -> None:
        async def never(*_: Any) -> Any:
            raise AssertionError

        await app()({"type": kind}, never, never)

    asyncio.run(scene())


@pytest.mark.parametrize("begun", [False, True])
def test_a_fault_after_the_first_byte_ends_the_connection_and_before_it_is_an_answer(begun: bool) -> None:
    """Who has half of an answer must not take what follows for the rest of it."""
    stream = io.StringIO()

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ZeroDivisionError("a secret")

    guard = Guard(broken, ServerSettings(("m",)), AccessLog(Service(ServerSettings(("m",))).metrics, stream))
    if begun:
        with pytest.raises(ZeroDivisionError):
            ask(guard, "GET", "/version")
    else:
        assert ask(guard, "GET", "/version").error["code"] == "internal_error"
    fault, request = map(json.loads, stream.getvalue().splitlines())
    assert (fault["event"], fault["kind"]) == ("fault", "ZeroDivisionError")
    assert request["status"] == (200 if begun else 500)
    assert "secret" not in stream.getvalue()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.5.5.5", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("box", False),
    ],
)
def test_loopback_is_known(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
