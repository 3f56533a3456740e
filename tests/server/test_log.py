"""The log: a line of JSON for each request, whatever was asked, and nothing of what was said."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest

from llmrs_cli.server.log import AccessLog
from llmrs_cli.server.metrics import Metrics
from tests.helpers.bench import Bench, Client
from tests.helpers.byte_tokenizer import byte_ids
from tests.helpers.fake_engine import reply

SCOPE: dict[str, Any] = {"request_id": b"r-1", "method": "GET", "path": "/x", "route_path": "/x"}


class Outcome:
    def __init__(self, status: int | None = None) -> None:
        self.status = status


def logged(scope: dict[str, Any], status: int | None, *, quiet: bool = False) -> tuple[str, str]:
    """What was written, and the metrics afterwards."""
    stream, metrics = io.StringIO(), Metrics("m", lambda: None)
    outcome = Outcome()
    with AccessLog(metrics, stream, quiet=quiet).request(scope, outcome):
        outcome.status = status
    return stream.getvalue(), metrics.text().decode()


def test_a_request_is_one_line_of_what_was_asked_and_how_it_ended() -> None:
    written, _ = logged({**SCOPE, "figures": {"prompt_tokens": 3}}, 200)
    record = json.loads(written)
    assert record.pop("time") > 0
    assert record.pop("seconds") >= 0
    assert record == {
        "event": "request",
        "id": "r-1",
        "method": "GET",
        "path": "/x",
        "status": 200,
        "prompt_tokens": 3,
    }


def test_a_client_that_left_has_a_status_of_its_own() -> None:
    written, metrics = logged(SCOPE, None)
    assert json.loads(written)["status"] == 499
    assert 'llmrs:http_responses_total{path="/x",status="499"} 1.0' in metrics


@pytest.mark.parametrize("path", ["/a\nb", "/\x1b[2J", "/\u2028x", "/" + "a" * 5000, "/\ud800"])
def test_no_path_leaves_its_line(path: str) -> None:
    written, _ = logged({**SCOPE, "path": path}, 404)
    assert written.isascii()
    assert written.count("\n") == 1
    assert len(written) < 1000


def test_paths_that_are_no_routes_are_one_series() -> None:
    scope = {name: value for name, value in SCOPE.items() if name != "route_path"}
    _, metrics = logged({**scope, "path": "/anything/else"}, 404)
    assert 'path="other"' in metrics
    assert "anything" not in metrics


def test_a_quiet_log_writes_nothing_and_counts_all_the_same() -> None:
    written, metrics = logged(SCOPE, 200, quiet=True)
    assert written == ""
    assert 'status="200"} 1.0' in metrics


def test_a_fault_is_named_by_its_place_without_a_value() -> None:
    stream = io.StringIO()
    try:
        raise ValueError("what the user said")
    except ValueError as error:
        AccessLog(Metrics("m", lambda: None), stream).fault(SCOPE, error)
    record = json.loads(stream.getvalue())
    assert (record["event"], record["kind"]) == ("fault", "ValueError")
    assert record["places"][0].startswith("test_a_fault_is_named")
    assert "user" not in stream.getvalue()


def test_a_log_that_cannot_be_written_ends_no_request() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError("no space left")

    log = AccessLog(Metrics("m", lambda: None), Full())
    for _ in range(2):
        with log.request(SCOPE, Outcome(200)):
            pass


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"prompt": "hi", "n": 99}, "invalid_value"),
        ({"prompt": "hi", "nn": 1}, "unknown_field"),
        ({}, "missing_field"),
    ],
)
def test_a_refusal_is_logged_with_its_code(body: dict[str, Any], code: str) -> None:
    async def scene() -> str:
        bench = Bench(reply(tuple(byte_ids("hello"))))
        await bench.ask(Client(body))
        bench.service.close()
        return bench.log.getvalue()

    record = json.loads(asyncio.run(scene()))
    assert (record["status"], record["error"]) == (400, code)
