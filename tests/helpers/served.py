"""`llmrs serve` in a process of its own, and a bare HTTP client that shows what came over the wire."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

PATIENCE = 60.0
"""Seconds after which a test gives up; none waits for it to pass."""
JSON = {"Content-Type": "application/json"}


SPY = """
import os, sys

WORDS = {"socket.bind": "listening", "socket.connect": "connecting", "socket.getaddrinfo": "asking for"}

def hook(event, arguments):
    if event in WORDS and arguments[0] != "127.0.0.1":
        with open(os.environ["SPY"], "a") as file:
            print(WORDS[event], arguments[0 if event.endswith("info") else 1:], file=file)

sys.addaudithook(hook)
"""
"""Python runs this first in every process of a server."""


class Reply(NamedTuple):
    """A whole response."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        """The body, by a strict parser."""
        return json.loads(self.data, parse_constant=_refuse)

    @property
    def events(self) -> list[Any]:
        """The events of a stream, [DONE] checked and left out."""
        blocks = self.data.decode().split("\n\n")
        assert blocks[-2:] == ["data: [DONE]", ""], self.data[-200:]
        assert all(block.startswith("data: ") and "\n" not in block for block in blocks[:-1])
        return [json.loads(block[6:], parse_constant=_refuse) for block in blocks[:-2]]

    @property
    def error(self) -> dict[str, Any]:
        """The error object."""
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


@dataclass(frozen=True, slots=True)
class Served:
    """A running server."""

    port: int
    process: subprocess.Popen[bytes]
    errors: Path
    """What it wrote to stderr."""
    connects: Path
    """What its processes did with sockets: a line for each that listens, or connects to somewhere."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> http.client.HTTPConnection:
        """A connection; the caller closes it."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self.ask("GET", path, None, headers or {})

    def post(
        self,
        path: str,
        body: Any,
        headers: Mapping[str, str] | None = None,
        begun: Callable[[], None] = lambda: None,
    ) -> Reply:
        """`body` is sent as it is if it is bytes, else as JSON; `begun` is called when the answer has begun."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask("POST", path, data, {**JSON, **(headers or {})}, begun)

    def ask(
        self,
        method: str,
        path: str,
        data: bytes | None,
        headers: Mapping[str, str],
        begun: Callable[[], None] = lambda: None,
    ) -> Reply:
        connection = self.connect()
        try:
            connection.request(method, path, data, dict(headers))
            response = connection.getresponse()
            begun()
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def metric(self, name: str) -> float:
        """The value of a series that has one label set."""
        lines = self.get("/metrics").data.decode().splitlines()
        (line,) = [line for line in lines if line.startswith(f"llmrs:{name}{{")]
        return float(line.rsplit(" ", 1)[1])

    def settle(self) -> None:
        """Wait until nothing runs and no block is held."""
        wait_until(
            lambda: self.metric("kv_cache_blocks_used") == 0 and self.metric("num_requests_running") == 0
        )

    @property
    def is_ready(self) -> bool:
        """Whether it serves; while it changes from loading to serving it may hang up on whoever is quiet."""
        try:
            return self.get("/health/ready").status == 200
        except ConnectionError:
            return False

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Signal it; the exit status."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


def wait_until(condition: Any) -> None:
    """Return as soon as `condition()` holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


@contextmanager
def served(
    model: Path, folder: Path, *flags: str, env: Mapping[str, str] | None = None, ready: bool = True
) -> Iterator[Served]:
    """A server of `model`; its files are in `folder`. With `ready` it has loaded."""
    errors, connects = folder / "stderr.txt", folder / "connects.txt"
    spy = folder / "spy"
    spy.mkdir(exist_ok=True)
    (spy / "sitecustomize.py").write_text(SPY)
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "llmrs_cli",
                "serve",
                str(model),
                "--port",
                "0",
                "--device",
                "reference",
                *flags,
            ],
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            env={
                **os.environ,
                "HOME": str(folder),
                "HF_HUB_OFFLINE": "1",
                "LLMRS_DEBUG": "1",
                "PYTHONPATH": os.pathsep.join([str(spy), os.environ.get("PYTHONPATH", "")]),
                "SPY": str(connects),
                **(env or {}),
            },
        )
    try:
        server = Served(_port(process), process, errors, connects)
        if ready:
            wait_until(lambda: process.poll() is not None or server.is_ready)
            assert process.poll() is None, errors.read_text()
        yield server
    finally:
        process.kill()
        process.wait()


def _port(process: subprocess.Popen[bytes]) -> int:
    """The port on which the process listens: the kernel chose it."""
    found: list[int] = []

    def look() -> bool:
        assert process.poll() is None, "the server ended"
        found.extend(_listening(process.pid))
        return bool(found)

    wait_until(look)
    return found[0]


def _listening(pid: int) -> list[int]:
    try:
        sockets = {link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir()}
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    except OSError:
        return []
    listen = "0A"
    return [
        int(row[1].split(":")[1], 16) for row in rows if row[3] == listen and f"socket:[{row[9]}]" in sockets
    ]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
