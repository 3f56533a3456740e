"""Clients over the socket: those that leave early, that come together, that would learn or forge what they should not."""

from __future__ import annotations

import contextlib
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


def request(body: Any, *more: str, path: str = CHAT) -> bytes:
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *more]
    return "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data


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
