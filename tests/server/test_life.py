"""A server's life: what it says while it loads, and every way in which it ends."""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmrs_cli.server.run import OPEN_FILES, Load, Tell, allow_files, listen, serve
from llmrs_cli.server.settings import ServerSettings
from tests.helpers.script_model import write_script_model
from tests.helpers.served import PATIENCE, Reply, Served, served, wait_until

ENDLESS = {
    "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "L"}],
    "continue_final_message": True,
    "stream": True,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripted checkpoint with room for an answer that outlasts any test."""
    return write_script_model(tmp_path_factory.mktemp("long") / "script", context=4096)


@pytest.fixture
def own(long_model: Path, tmp_path: Path) -> Iterator[Served]:
    """A server of the test's own, that drains for a moment only."""
    with served(long_model, tmp_path, "--rows", "4", "--drain", "0.2", "--queue", "2") as server:
        yield server


class Asked(threading.Thread):
    """A request under way in a thread."""

    def __init__(self, server: Served, body: Any) -> None:
        super().__init__(daemon=True)
        self.server, self.body = server, body
        self.reply: Reply | None = None
        self._begun = threading.Event()
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.reply = self.server.post("/v1/chat/completions", self.body, begun=self._begun.set)

    def begun(self) -> Asked:
        """Wait until its answer has begun."""
        assert self._begun.wait(PATIENCE)
        return self

    def wait(self) -> Reply:
        self.join(PATIENCE)
        assert self.reply is not None
        return self.reply

    @property
    def error(self) -> str:
        """The code with which it ended, before its first token or after."""
        reply = self.wait()
        error = reply.error if reply.status != 200 else reply.events[-1]["error"]
        return str(error["code"])


def children_of(server: Served) -> list[int]:
    """Its processes: the engine's, and the one that tries grammars if there was one."""
    tasks = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def child_of(server: Served) -> int:
    """The engine's process."""
    (child,) = children_of(server)
    return child


@contextlib.contextmanager
def halted(server: Served) -> Iterator[None]:
    """The engine stands still meanwhile: what is under way stays so, however slow the test is."""
    child = child_of(server)
    os.kill(child, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(child, signal.SIGCONT)


@pytest.mark.parametrize(
    ("soft", "hard", "asked"),
    [
        (1024, 4096, OPEN_FILES),
        (1024, resource.RLIM_INFINITY, OPEN_FILES),
        (256, 1100, 1100),
        (OPEN_FILES, OPEN_FILES, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_it_asks_for_as_many_files_as_it_takes_connections(
    soft: int, hard: int, asked: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: told.append(limits))
    allow_files()
    assert told == ([] if asked is None else [(asked, hard)])


def test_told_to_stop_when_idle_it_ends_well(own: Served) -> None:
    child = child_of(own)
    assert own.stop() == 0
    assert "Answers under way" not in own.errors.read_text()
    wait_until(lambda: not Path(f"/proc/{child}").exists())


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_answers_under_way_and_those_that_wait_are_told_at_the_end(
    own: Served, number: int, status: int
) -> None:
    asked = [Asked(own, ENDLESS) for _ in range(6)]
    wait_until(lambda: own.metric("num_requests_running") == 4 and own.metric("num_requests_waiting") == 2)
    assert own.stop(number) == status
    assert [one.error for one in asked] == ["shutting_down"] * 6
    assert "Answers under way get 0.2 s to end; a second signal ends at once." in own.errors.read_text()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_before_the_model_is_there_is_the_status(long_model: Path, number: int, status: int) -> None:
    tell = Tell(lambda done, whole: os.kill(os.getpid(), number), lambda engine, tokens: None)
    load = Load(long_model, "reference")
    with listen("127.0.0.1", 0) as listener:
        assert serve(listener, ServerSettings(names=("x",)), load, tell, quiet=True) == status


def test_requests_whose_prompt_is_still_being_read_are_told_at_the_end(own: Served) -> None:
    os.kill(child_of(own), signal.SIGSTOP)  # so no token comes
    asked = [Asked(own, {**ENDLESS, "stream": number % 2 == 0}) for number in range(7)]
    wait_until(lambda: sum(not one.is_alive() for one in asked) == 1)  # one too many: six have been taken
    assert own.stop() == 143
    assert sorted((one.wait().status, one.error) for one in asked) == [
        (429, "overloaded"),
        *[(503, "shutting_down")] * 6,
    ]


def test_a_short_answer_ends_before_the_server_does(long_model: Path, tmp_path: Path) -> None:
    with served(long_model, tmp_path, "--rows", "4", "--drain", "300") as server:
        asked = Asked(server, {**ENDLESS, "max_tokens": 400}).begun()
        with halted(server):
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: server.get("/health/ready").status == 503)
        assert asked.wait().events[-1]["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(PATIENCE) == 0


def test_a_second_signal_ends_it_at_once(long_model: Path, tmp_path: Path) -> None:
    with served(long_model, tmp_path, "--rows", "4", "--drain", "300") as server:
        asked = Asked(server, ENDLESS).begun()
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.get("/health/ready").status == 503)
        assert server.stop() == 143
        assert asked.error == "shutting_down"


def test_a_killed_engine_is_told_and_ends_the_server(own: Served) -> None:
    asked = Asked(own, ENDLESS).begun()
    os.kill(child_of(own), signal.SIGKILL)
    assert asked.error == "engine_fault"
    assert own.process.wait(PATIENCE) == 8
    assert "llmrs: The engine's process ended unexpectedly." in own.errors.read_text()


def test_an_engine_that_hangs_is_noticed(long_model: Path, tmp_path: Path) -> None:
    with served(long_model, tmp_path, "--rows", "4", "--watchdog", "1") as server:
        asked = Asked(server, ENDLESS).begun()
        os.kill(child_of(server), signal.SIGSTOP)
        assert asked.error == "engine_fault"
        assert server.process.wait(PATIENCE) == 8


def test_its_processes_end_with_a_killed_server(own: Served) -> None:
    own.post("/v1/completions", {"prompt": "S", "structured_outputs": {"choice": ["a"]}})
    children = children_of(own)
    assert len(children) == 2
    Asked(own, ENDLESS).begun()
    own.process.kill()
    own.process.wait()
    wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
    listen("127.0.0.1", own.port).close()  # and the address is free again


def test_more_than_may_wait_is_refused_and_the_rest_is_served(own: Served) -> None:
    short = {**ENDLESS, "max_tokens": 20}
    with halted(own):
        asked = [Asked(own, short) for _ in range(20)]
        wait_until(lambda: sum(not one.is_alive() for one in asked) == 14)
    replies = [one.wait() for one in asked]
    assert sorted(reply.status for reply in replies) == [200] * 6 + [429] * 14  # four rows, two that wait
    for reply in replies:
        if reply.status == 429:
            assert reply.error["code"] == "overloaded"
            assert reply.headers["retry-after"] == "1"
        else:
            assert reply.events[-1]["choices"][0]["finish_reason"] == "length"
    assert own.post("/v1/chat/completions", short).status == 200


def test_a_client_may_come_while_the_model_loads(script_model: Path, tmp_path: Path) -> None:
    with served(script_model, tmp_path, ready=False) as server:
        reply = server.post("/v1/chat/completions", ENDLESS)
        assert (reply.status, reply.error["code"]) == (503, "loading")
        assert reply.headers["retry-after"] == "2"
        wait_until(lambda: server.is_ready)
        assert server.get("/health/live").json == {"status": "ready"}


def test_with_a_key_only_its_owner_is_served(script_model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first-secret\nsecond-secret\n")
    with served(script_model, tmp_path, "--api-key-file", str(keys)) as server:
        assert server.get("/v1/models").status == 401
        assert server.get("/v1/models", {"Authorization": "Bearer second-secret"}).status == 200
        server.stop()
        assert "secret" not in server.errors.read_text()
