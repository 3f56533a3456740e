"""Bytes that are no proper request: bodies, headers and addresses that are refused, each with OpenAI's error object."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
from http import HTTPStatus

import h11
import pytest

from llmrs_cli.server.connections import Reader
from llmrs_cli.server.settings import MAX_HEADER_BYTES, MAX_HEADERS
from tests.helpers.served import Served
from tests.server.test_wire_http import CHAT, HI, raw, request


def status(server: Served, data: bytes) -> int:
    """The status of the answer to some bytes; 0 if the connection was just closed."""
    with raw(server, data) as connection:
        line = connection.recv(4096).split(b"\r\n")[0]
    return int(line.split()[1]) if line else 0


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"[]", "invalid_json"),
        (b"null", "invalid_json"),
        (b'\xef\xbb\xbf{"messages": []}', "invalid_json"),
        (b'{"messages": "\xff"}', "invalid_json"),
        (b'{"messages": "\\ud800"}', "invalid_json"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(server: Served, data: bytes, code: str) -> None:
    reply = server.post(CHAT, data)
    assert (reply.status, reply.error["code"]) == (400, code)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("application/json; charset=utf-8", 200),
        ("APPLICATION/JSON", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("", 415),
    ],
)
def test_only_json_is_read(server: Served, kind: str, expected: int) -> None:
    assert server.post(CHAT, HI, {"Content-Type": kind}).status == expected


def test_a_compressed_body_is_not_read(server: Served) -> None:
    data = gzip.compress(json.dumps(HI).encode())
    assert server.post(CHAT, data, {"Content-Encoding": "gzip"}).status == 415


def test_a_large_body_is_refused_before_it_is_read(server: Served) -> None:
    announced = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    assert status(server, f"{announced}Content-Length: {4 * 1024 * 1024 + 1}\r\n\r\n".encode()) == 413


def test_a_body_without_an_announced_length_is_counted(server: Served) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    with raw(server, f"{head}Transfer-Encoding: chunked\r\n\r\n".encode()) as connection:
        try:
            for _ in range(70):
                connection.sendall(chunk)
        except (BrokenPipeError, ConnectionResetError):
            return  # refused while we were still sending
        assert b" 413 " in connection.recv(64)


GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked"


@pytest.mark.parametrize(
    ("data", "expected", "code"),
    [
        (GET + b"X: " + b"a" * 40_000 + b"\r\n\r\n", 431, "header_too_large"),
        (GET + b"X: " + b"a" * 40_000, 431, "header_too_large"),
        (GET + b"X: a\r\n" * 120 + b"\r\n", 431, "header_too_large"),
        (GET + b"X: a\r\n" * 10_000 + b"\r\n", 431, "header_too_large"),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414, "target_too_long"),
        (b"nonsense\r\n\r\n", 400, "invalid_http"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "invalid_http"),
        (GET + b"X\x00: a\r\n\r\n", 400, "invalid_http"),
        (
            request(HI).replace(b"Content-Length", b"Transfer-Encoding: chunked\r\nContent-Length"),
            400,
            "ambiguous_length",
        ),
        (CHUNKED + b"\r\n\r\nZZ\r\n", 400, "invalid_http"),
    ],
    ids=[
        "long line",
        "no end",
        "many lines",
        "far too many lines",
        "long target",
        "nonsense",
        "TLS",
        "NUL",
        "two lengths",
        "bad chunk",
    ],
)
def test_malformed_http_is_refused_in_our_words(
    server: Served, data: bytes, expected: int, code: str
) -> None:
    with raw(server, data) as connection:
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert (response.status, response.reason) == (expected, HTTPStatus(expected).phrase)
        assert json.loads(response.read())["error"]["code"] == code
    assert server.post(CHAT, HI).status == 200


@pytest.mark.parametrize(
    ("lines", "refused"), [(MAX_HEADERS, False), (MAX_HEADERS + 1, True), (10_000, True)]
)
def test_a_header_of_too_many_lines_is_not_even_read(lines: int, refused: bool) -> None:
    reader = Reader(h11.SERVER, MAX_HEADER_BYTES)
    reader.receive_data(GET.replace(b"\nHost: localhost", b"\nHost: a" + b"\r\nX: a" * (lines - 1)) + b"\r\n")
    if refused:
        with pytest.raises(h11.RemoteProtocolError) as error:
            reader.next_event()
        assert error.value.error_status_hint == 431
    else:
        assert isinstance(reader.next_event(), h11.Request)


def test_a_body_that_breaks_after_its_answer_ends_the_connection(server: Served) -> None:
    with raw(server, CHUNKED.replace(b"/tokenize", b"/nothing") + b"\r\n\r\n1\r\n{\r\n") as connection:
        seen = connection.recv(65536)
        connection.sendall(b"ZZ\r\n")
        while part := connection.recv(65536):
            seen += part
    assert seen.startswith(b"HTTP/1.1 404 ")
    assert seen.count(b"HTTP/1.1 ") == 1
    assert "Traceback" not in server.errors.read_text()


def test_a_header_of_megabytes_is_cut_off_and_nobody_waits(server: Served) -> None:
    with raw(server, GET + b"X: ") as connection, contextlib.suppress(ConnectionError):
        for _ in range(128):
            connection.sendall(b"a" * 65536)
            assert server.get("/health/live").status == 200
        pytest.fail("all of it was taken")


def test_a_body_longer_than_announced_is_no_request(server: Served) -> None:
    short = request(HI, "Connection: keep-alive").replace(b"Content-Length: ", b"Content-Length: 1")
    long = request({**HI, "max_tokens": 1}) + b"and more of it\r\n\r\n"
    with raw(server, short) as connection:
        connection.shutdown(socket.SHUT_WR)  # the rest never comes
        assert connection.recv(64) == b""
    with raw(server, long) as connection:
        seen = b""
        while part := connection.recv(65536):
            seen += part
        assert seen.startswith(b"HTTP/1.1 200 ")
        assert b"HTTP/1.1 400 " in seen


def test_of_a_name_given_twice_the_last_counts(server: Served) -> None:
    data = b'{"prompt": "say S", "prompt": "say L", "max_tokens": 2, "temperature": 0}'
    assert server.post("/v1/completions", data).json["choices"][0]["text"] == "xy"


def test_requests_may_come_before_answers_were_read(server: Served) -> None:
    one = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with raw(server, one * 1000) as connection:
        seen = b""
        while seen.count(b"HTTP/1.1 200") < 1000:
            part = connection.recv(65536)
            assert part
            seen += part


def test_an_old_client_gets_its_stream_without_chunks(server: Served) -> None:
    data = request({**HI, "stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0")
    seen = b""
    with raw(server, data) as connection:
        while part := connection.recv(65536):
            seen += part
    head, _, body = seen.partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    events = body.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: {") for event in events[:-2])


@pytest.mark.parametrize("path", ["/v1/nothing", "//v1/models", "/v1/models/", "/%2e%2e/etc/passwd", "/docs"])
def test_a_path_that_is_not_there_is_not_found(server: Served, path: str) -> None:
    reply = server.get(path)
    assert (reply.status, reply.error["code"]) == (404, "not_found")


def test_a_wrong_method_names_the_right_one(server: Served) -> None:
    reply = server.get(CHAT)
    assert (reply.status, reply.headers["allow"]) == (405, "POST")


def test_embeddings_are_refused_by_name(server: Served) -> None:
    reply = server.post("/v1/embeddings", {"input": "a"})
    assert reply.status == 400
    assert "embeddings" in reply.error["message"]


def test_a_harmless_request_id_comes_back(server: Served) -> None:
    assert server.get("/version", {"X-Request-Id": "abc-1.2_3"}).headers["x-request-id"] == "abc-1.2_3"
    for odd in ("a b", "a" * 129, "ü", "<script>"):
        assert server.get("/version", {"X-Request-Id": odd}).headers["x-request-id"] != odd
