"""One line of JSON per request on stderr: what was asked, how it ended, how long it took; never a prompt.

Paths and ids are escaped by JSON, so nothing in them can forge a line or reach a terminal.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

from llmrs_cli.server.metrics import Metrics


class Outcome(Protocol):
    """What is known of a response."""

    status: int | None


class AccessLog:
    """Writes and counts requests."""

    def __init__(self, metrics: Metrics, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._metrics = metrics
        self._stream = stream
        self._quiet = quiet

    @contextmanager
    def request(self, scope: Mapping[str, Any], outcome: Outcome) -> Iterator[None]:
        """Around the whole of a request; one whose client did not stay for all of its response has status 499."""
        began = time.monotonic()
        try:
            yield
        finally:
            status = 499 if scope.get("left") else outcome.status or 499
            self._metrics.responded(_route(scope), status)
            self._write(
                {
                    "event": "request",
                    "id": scope["request_id"].decode(),
                    "method": scope["method"],
                    "path": scope["path"][:200],
                    "status": status,
                    "seconds": round(time.monotonic() - began, 4),
                    **scope.get("figures", {}),
                }
            )

    def fault(self, scope: Mapping[str, Any], error: BaseException) -> None:
        """An exception that nobody expected: its kind and place, without values."""
        frames = traceback.extract_tb(error.__traceback__)[-4:]
        places = [f"{frame.name}:{frame.lineno}" for frame in frames]
        self._write(
            {
                "event": "fault",
                "id": scope["request_id"].decode(),
                "kind": type(error).__name__,
                "places": places,
            }
        )

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._quiet:
            return
        line = json.dumps({"time": round(time.time(), 3), **record})
        try:
            print(line, file=self._stream or sys.stderr, flush=True)
        except OSError:
            self._quiet = True


def _route(scope: Mapping[str, Any]) -> str:
    """The matched route: a label of few values."""
    return str(scope.get("route_path", "other"))
