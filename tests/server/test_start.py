"""What a server needs to start, and what it says when it has, or why it will not."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from llmrs_cli.cli import serve as serve_command
from llmrs_cli.cli.models import Chosen, model_named
from llmrs_cli.cli.root import root
from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.errors import ModelError
from tests.helpers.served import served
from tests.helpers.tiny_model import write_tiny


def serve(*args: str, **env: str) -> Result:
    return CliRunner(env={"LLMRS_DEVICE": "reference", "HF_HUB_OFFLINE": "1", **env}).invoke(
        root, ["serve", *args]
    )


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


def test_what_does_not_fit_is_known_before_anything_is_loaded(script_model: Path) -> None:
    result = serve(str(script_model), "--port", "0", "--rows", "4096", "--gpu-memory", "1M")
    assert result.exit_code == 6
    assert "does not fit" in result.stderr
    assert "available 1 MiB" in result.stderr


@pytest.mark.parametrize(("rows", "sensible"), [(8, True), (4096, False)])
def test_it_says_so_if_far_more_rows_are_asked_for_than_there_is_room(
    rows: int, sensible: bool, tmp_path: Path
) -> None:
    with served(write_tiny(tmp_path / "tiny"), tmp_path, "--rows", str(rows)) as server:
        blocks = int(server.metric("kv_cache_blocks"))
        told = server.errors.read_text()
    tokens = blocks * ReferenceBackend.block_size
    assert f"{rows} at once in a KV cache of {tokens} tokens" in told
    assert (tokens >= 64 * rows) == sensible
    assert ("So many hardly find room in it" in told) != sensible


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
