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
from tests.helpers.byte_tokenizer import byte_id
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


NAN = """
import sys

if "llmrs_cli.server.child" in sys.orig_argv:
    from llmrs_cli.engine.backends.reference import ReferenceBackend

    head = ReferenceBackend.head

    def spoiled(self, *args):
        logits = head(self, *args)
        logits[logits.argmax(axis=1) == {token}] = float("nan")
        return logits

    ReferenceBackend.head = spoiled
"""
"""The same, with logits that are no numbers where this token would be the likeliest."""


def environment(folder: Path, script: str) -> dict[str, str]:
    """With which a server's processes run a script before all else."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(script)
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.parametrize("stream", [False, True])
def test_a_row_whose_logits_are_no_numbers_fails_alone(
    stream: bool, script_model: Path, tmp_path: Path
) -> None:
    """L is followed by x, y, x, …; S by letters of which none is a y."""
    env = environment(tmp_path / "fault", NAN.format(token=byte_id(ord("y"))))
    with served(script_model, tmp_path, "--rows", "4", env=env) as server, ThreadPoolExecutor(8) as clients:
        bodies = [
            {"prompt": f"{number} {letter}", "temperature": 0, "stream": stream}
            for number in range(6)
            for letter in "LS"
        ]
        replies = list(clients.map(lambda body: server.post("/v1/completions", body), bodies))
        for bad, good in zip(replies[::2], replies[1::2], strict=True):
            begun = stream and bad.status == 200  # if its x came before the error did
            assert (bad.events[-1]["error"] if begun else bad.error)["code"] == "numeric"
            assert bad.status == 500 or begun
            told = good.events if stream else [good.json]
            text = "".join(event["choices"][0]["text"] for event in told)
            assert text == " alpha beta gamma delta"
        server.settle()
        assert server.get("/health/ready").status == 200


@pytest.mark.parametrize("fault", ["raise RuntimeError('a secret')", "raise SystemExit", "raise MemoryError"])
@pytest.mark.parametrize("step", [12, 40])
def test_a_step_that_raises_is_told_to_everybody_and_ends_the_server(
    fault: str, step: int, script_model: Path, tmp_path: Path
) -> None:
    env = environment(tmp_path / "fault", FAULT.format(step=step, fault=fault))
    with served(script_model, tmp_path, "--rows", "4", env=env) as server:
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
