"""A step of the engine that goes wrong under a running server: everybody is told, health says so, and it ends."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from llmrs_cli.errors import EngineFault
from llmrs_cli.server import run
from llmrs_cli.server.service import Service
from llmrs_cli.server.settings import ServerSettings
from tests.helpers.served import JSON, PATIENCE, served, wait_until
from tests.server.test_life import ENDLESS, Asked
from tests.server.test_remote import READY

FAULT = """
import sys

if "llmrs_cli.server.child" in sys.orig_argv:
    from itertools import count
    from llmrs_cli.engine.api import Engine

    steps, advance = count(), Engine._advance

    def faulty(self):
        if next(steps) >= {step}:
            {fault}
        advance(self)

    Engine._advance = faulty
"""
"""Python runs this first in every process of the server."""


@pytest.mark.parametrize("fault", ["raise RuntimeError('a secret')", "raise SystemExit", "raise MemoryError"])
@pytest.mark.parametrize("step", [12, 40])
def test_a_step_that_raises_is_told_to_everybody_and_ends_the_server(
    fault: str, step: int, script_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "fault"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(FAULT.format(step=step, fault=fault))
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    with served(script_model, tmp_path, "--rows", "4", env={"PYTHONPATH": path}) as server:
        asked = [Asked(server, {**ENDLESS, "stream": number % 2 == 0}) for number in range(6)]
        assert [one.error for one in asked] == ["engine_fault"] * 6
        assert server.process.wait(PATIENCE) == 8
    written = server.errors.read_text()
    assert "llmrs: The engine" in written
    assert "a secret" not in [line for line in written.splitlines() if line.startswith("llmrs:")][-1]


def test_health_says_so_once_the_engine_has_not_moved_for_too_long(
    script_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is ready and then does nothing. Somebody is still being served, so the server is not gone yet."""
    services: list[Service] = []

    class Seen(Service):
        def __init__(self, settings: ServerSettings) -> None:
            super().__init__(settings)
            services.append(self)

    monkeypatch.setattr(run, "Service", Seen)
    script = tmp_path / "child.py"
    script.write_text(READY + "inbox.read()")
    load = run.Load(script_model, "x", command=(sys.executable, str(script)))

    def ask(port: int, method: str, path: str, body: Any = None) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        try:
            connection.request(method, path, body and json.dumps(body).encode(), JSON)
            return connection.getresponse().status
        finally:
            connection.close()

    def watch(port: int, leave: Any) -> list[int]:
        told = [ask(port, "GET", "/health/live"), ask(port, "POST", "/v1/completions", {"prompt": [1]})]
        wait_until(lambda: ask(port, "GET", "/health/live") == 503)
        leave()
        return told

    with run.listen("127.0.0.1", 0) as listener, ThreadPoolExecutor(1) as client:
        watching: list[Any] = []

        def ready(*_: Any) -> None:
            loop, place = asyncio.get_running_loop(), services[0].place()
            place.__enter__()

            def leave() -> None:
                loop.call_soon_threadsafe(place.__exit__, None, None, None)

            watching.append(client.submit(watch, listener.getsockname()[1], leave))

        tell = run.Tell(lambda done, whole: None, ready)
        with pytest.raises(EngineFault, match="has not moved"):
            run.serve(listener, ServerSettings(("m",), watchdog=0.3), load, tell, quiet=True)
        assert watching[0].result() == [200, 503]
