"""What comes in over the socket that is no proper request, and what leaves it early or reads nothing."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from tests.helpers.served import JSON, PATIENCE, Served, wait_until

CHAT = "/v1/chat/completions"
STORM = 504 if os.environ.get("SOAK") == "1" else 96
"""Clients that leave, and as many that stay."""
HI = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0}
ENDLESS = {
    "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "L"}],
    "continue_final_message": True,
    "ignore_eos": True,
}


@contextmanager
def raw(server: Served, data: bytes) -> Iterator[socket.socket]:
    """A socket on which `data` was sent."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        connection.sendall(data)
        yield connection


def status(server: Served, data: bytes) -> int:
    """The status of the answer to some bytes; 0 if the connection was just closed."""
    with raw(server, data) as connection:
        line = connection.recv(4096).split(b"\r\n")[0]
    return int(line.split()[1]) if line else 0


def request(body: Any, *more: str, path: str = CHAT) -> bytes:
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *more]
    return "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data


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


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 40_000 + b"\r\n\r\n", (400, 431, 0)),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 120 + b"\r\n", (431,)),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", (414,)),
        (b"nonsense\r\n\r\n", (400,)),
        (request(HI).replace(b"Content-Length", b"Transfer-Encoding: chunked\r\nContent-Length"), (400, 0)),
        (
            b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
            (400, 415),
        ),
    ],
)
def test_malformed_http_is_refused(server: Served, data: bytes, expected: tuple[int, ...]) -> None:
    assert status(server, data) in expected


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


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_request(server: Served, stream: bool) -> None:
    before = server.metric("generation_tokens_total")
    with raw(server, request({**ENDLESS, "stream": stream})):
        wait_until(lambda: server.metric("num_requests_running") == 1)
    server.settle()
    assert server.metric("generation_tokens_total") - before < 480


def test_a_client_that_leaves_while_it_waits_ends_its_request(server: Served) -> None:
    with raw(server, request({**ENDLESS, "n": 8, "max_tokens": 240})):
        wait_until(lambda: server.metric("num_requests_running") == 8)
        with raw(server, request(ENDLESS)):
            wait_until(lambda: server.metric("num_requests_waiting") == 1)
        wait_until(lambda: server.metric("num_requests_waiting") == 0)


def test_many_streams_at_once_are_each_like_one_alone(server: Served) -> None:
    bodies = [
        {"prompt": f"{number} F", "temperature": 1, "seed": number, "max_tokens": 12} for number in range(16)
    ]

    def whole(body: dict[str, Any]) -> str:
        return str(server.post("/v1/completions", body).json["choices"][0]["text"])

    def streamed(body: dict[str, Any]) -> str:
        events = server.post("/v1/completions", {**body, "stream": True}).events
        return "".join(event["choices"][0]["text"] for event in events)

    alone = [whole(body) for body in bodies]
    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(streamed, bodies * 4)) == alone * 4


def test_a_hundred_requests_of_one_id_are_each_answered(server: Served) -> None:
    def ask(number: int) -> str:
        body = {"prompt": f"{number} L", "echo": True, "max_tokens": 2}
        reply = server.post("/v1/completions", body, {"X-Request-Id": "the-same"})
        assert reply.headers["x-request-id"] == "the-same"
        return str(reply.json["choices"][0]["text"])

    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(ask, range(100))) == [f"{number} Lxy" for number in range(100)]


def test_a_word_of_a_megabyte_is_refused_and_nobody_waits(server: Served) -> None:
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(server.post, "/v1/completions", {"prompt": "a" * 1_000_000})
        assert server.get("/health/ready").status == 200
        assert long.result().error["code"] == "context_length_exceeded"


def test_a_storm_of_clients_that_leave_changes_nothing_for_the_others(server: Served) -> None:
    """Of those who stay each has the answer that it has alone, whole or streamed, of one choice or of two."""
    bodies = [
        {
            "prompt": f"{i} F",
            "temperature": 1,
            "seed": i,
            "max_tokens": 12,
            "n": 1 + i % 2,
            "stream": i % 3 == 0,
        }
        for i in range(12)
    ]

    def texts(body: dict[str, Any]) -> dict[int, str]:
        reply = server.post("/v1/completions", body)
        told: dict[int, str] = {}
        for event in reply.events if body["stream"] else [reply.json]:
            for choice in event["choices"]:
                told[choice["index"]] = told.get(choice["index"], "") + choice["text"]
        return told

    alone = [texts(body) for body in bodies]

    def leave(number: int) -> None:
        with raw(server, request({**ENDLESS, "stream": number % 2 == 0, "n": 1 + number % 3})) as connection:
            connection.settimeout(0.02 * (number % 5) + 0.001)
            with contextlib.suppress(TimeoutError):
                connection.recv(64)

    with ThreadPoolExecutor(16) as leavers, ThreadPoolExecutor(16) as stayers:
        left = [leavers.submit(leave, number) for number in range(STORM)]
        assert list(stayers.map(texts, bodies * (STORM // 12))) == alone * (STORM // 12)
        for one in left:
            one.result()


def test_nothing_private_is_said_in_errors_or_logs(server: Served) -> None:
    secret = "correct horse battery"
    server.post("/v1/completions", {"prompt": secret, "max_tokens": 2})
    server.post("/v1/completions", {"prompt": secret, "max_tokens": "x"})
    written = server.errors.read_text()
    assert secret not in written
    assert "Traceback" not in written


def test_a_path_cannot_forge_a_line_of_the_log(server: Served) -> None:
    server.get("/%0a%1b[31mforged")
    lines = server.errors.read_text().splitlines()
    assert not any(line.startswith(("forged", "\x1b")) for line in lines)


OUTWARD = [
    (
        {"messages": [{"role": "user", "content": [{"type": kind, kind: {"url": "http://127.0.0.1:9/x"}}]}]},
        CHAT,
    )
    for kind in ("image_url", "file", "audio", "input_audio", "video_url")
] + [
    ({"messages": HI["messages"], "chat_template": "{{ 1 }}"}, CHAT),
    ({"messages": HI["messages"], "extra_body": {"code": "import os"}}, CHAT),
    ({"messages": HI["messages"], "tools": [{"type": "code_interpreter"}]}, CHAT),
    (
        {
            "messages": HI["messages"],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"$ref": "http://127.0.0.1:9/x"}},
            },
        },
        CHAT,
    ),
    (
        {
            "input": [
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_image", "image_url": "http://127.0.0.1:9"}],
                }
            ]
        },
        "/v1/responses",
    ),
]


@pytest.mark.parametrize(("body", "path"), OUTWARD)
def test_what_would_make_it_reach_out_is_refused(server: Served, body: Any, path: str) -> None:
    reply = server.post(path, body)
    assert reply.status == 400
    assert reply.error["param"] is not None


def test_no_process_of_the_server_ever_connects_to_anything(server: Served) -> None:
    server.post(CHAT, {**HI, "response_format": {"type": "json_object"}, "max_tokens": 3})
    told = server.connects.read_text().splitlines()
    assert any(line.startswith("listening") for line in told)  # so it does listen to what is done
    assert [line for line in told if not line.startswith("listening")] == []


def test_json_is_json_by_its_header(server: Served) -> None:
    assert server.post(CHAT, HI).headers["content-type"] == JSON["Content-Type"]
