"""One server of the scripted model for all tests that do not end it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.helpers.script_model import write_script_model
from tests.helpers.served import Served, served


@pytest.fixture(scope="session")
def script_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripted checkpoint."""
    return write_script_model(tmp_path_factory.mktemp("script") / "script")


@pytest.fixture(scope="session")
def running(script_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The server itself."""
    with served(script_model, tmp_path_factory.mktemp("server"), "--rows", "8") as server:
        yield server


@pytest.fixture
def server(running: Served) -> Iterator[Served]:
    """The server, which after every test still answers a plain request and holds nothing."""
    yield running
    reply = running.post(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "temperature": 0}
    )
    assert reply.json["choices"][0]["message"]["content"] == "Hello world"
    running.settle()


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    """OpenAI's own client; it does not try again."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client
