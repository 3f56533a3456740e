"""A server's life: what it needs to start, what it says while it loads, and every way in which it ends."""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from llmrs_cli.cli import serve as serve_command
from llmrs_cli.cli.models import Chosen, model_named
from llmrs_cli.cli.root import root
from llmrs_cli.errors import ModelError
from llmrs_cli.server.run import OPEN_FILES, allow_files, listen
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
    wait_until(lambda: not Path(f"/proc/{child}").exists())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_answers_under_way_and_those_that_wait_are_told_at_the_end(own: Served, number: int) -> None:
    asked = [Asked(own, ENDLESS) for _ in range(6)]
    wait_until(lambda: own.metric("num_requests_running") == 4 and own.metric("num_requests_waiting") == 2)
    assert own.stop(number) == 143
    assert [one.error for one in asked] == ["shutting_down"] * 6


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


def test_a_client_may_come_while_the_model_is_being_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[str, int, str]] = []

    def fetch(*_: Any) -> None:
        for path in ("/health/live", "/health/ready", "/v1/models"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", path)
            response = connection.getresponse()
            heard.append((path, response.status, response.read().decode()))
            connection.close()
        raise ModelError("That was not the model.")

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(serve_command, "choose", fetch)
    assert serve("x", "--port", str(port), "--quiet").exit_code == 5
    assert [(path, status) for path, status, _ in heard] == [
        ("/health/live", 200),
        ("/health/ready", 503),
        ("/v1/models", 503),
    ]
    assert all("loading" in body for _, _, body in heard)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_with_a_key_only_its_owner_is_served(script_model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first-secret\nsecond-secret\n")
    with served(script_model, tmp_path, "--api-key-file", str(keys)) as server:
        assert server.get("/v1/models").status == 401
        assert server.get("/v1/models", {"Authorization": "Bearer second-secret"}).status == 200
        server.stop()
        assert "secret" not in server.errors.read_text()


# -- what it needs to start ---------------------------------------------------------------------------


def serve(*args: str, **env: str) -> Result:
    return CliRunner(env={"LLMRS_DEVICE": "reference", "HF_HUB_OFFLINE": "1", **env}).invoke(
        root, ["serve", *args]
    )


def test_a_port_in_use_is_known_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = serve("./no-such-model", "--port", str(taken.getsockname()[1]))
    assert result.exit_code == 2
    assert "is in use" in result.stderr


def test_an_address_that_is_not_ours_is_refused() -> None:
    result = serve("./no-such-model", "--host", "203.0.113.1", "--port", "0", "--insecure-no-auth")
    assert result.exit_code == 2
    assert "Cannot listen on 203.0.113.1" in result.stderr


def test_a_model_that_is_not_there_is_said(tmp_path: Path) -> None:
    assert serve(str(tmp_path / "nothing"), "--port", "0").exit_code == 5


def test_a_damaged_model_ends_the_server(tmp_path: Path, script_model: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in script_model.iterdir():
        (broken / file.name).write_bytes(
            file.read_bytes()[:-1000] if file.suffix == ".safetensors" else file.read_bytes()
        )
    run = subprocess.run(
        [sys.executable, "-m", "llmrs_cli", "serve", str(broken), "--port", "0", "--device", "reference"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 5
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_beyond_this_machine_a_key_is_needed(host: str) -> None:
    result = serve("x", "--host", host)
    assert result.exit_code == 2
    assert "without a key" in result.stderr


@pytest.mark.parametrize("content", ["", "\n", "short\n", "has a blank\n", "schlüssel-schlüssel\n"])
def test_a_key_file_must_hold_good_keys(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys"
    file.write_text(content)
    assert serve("x", "--api-key-file", str(file)).exit_code == 2


def test_a_key_file_must_be_there(tmp_path: Path) -> None:
    result = serve("x", "--api-key-file", str(tmp_path / "none"))
    assert (result.exit_code, "Cannot read the key file" in result.stderr) == (2, True)


def test_the_key_may_come_from_the_environment(tmp_path: Path) -> None:
    # The key is good, so it is the model that is missing.
    assert serve(str(tmp_path / "no"), "--port", "0", LLMRS_API_KEY="long-enough").exit_code == 5


def test_a_model_is_listed_by_its_short_name_and_its_repository(tmp_path: Path) -> None:
    def names(model: str) -> tuple[str, ...]:
        return serve_command.served_names(Chosen(model_named(model), tmp_path, "cpu", None))

    assert names("qwen2.5-3b") == ("qwen2.5-3b", "Qwen/Qwen2.5-3B-Instruct")
    assert names("Qwen/Qwen2.5-3B-Instruct") == ("Qwen/Qwen2.5-3B-Instruct",)
    assert names(str(tmp_path)) == (tmp_path.name,)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_command, "PACKAGES", ("a_package_that_is_not_there",))
    result = serve("x")
    assert result.exit_code == 2
    assert "pip install" in result.stderr
