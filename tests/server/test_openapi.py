"""The server against its own OpenAPI description: generated requests of the right kind and of the wrong one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrs_cli.server.app import GETS, POSTS
from llmrs_cli.server.openapi import document
from llmrs_cli.server.schema import CHAT
from llmrs_cli.server.security import PUBLIC
from tests.helpers.served import Served, served

KEY = "a-key-of-mine"
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "400"]
"""
"""What fits each field may still be more than the model's context, or mean nothing together: that is a 400, no other."""
EXAMPLES = 100 if os.environ.get("SOAK") == "1" else 5
"""Of each kind and path, beside every field's edge cases."""


@pytest.fixture
def locked(script_model: Path, tmp_path: Path) -> Iterator[Served]:
    """A server with a key."""
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    keys.chmod(0o600)
    with served(script_model, tmp_path, "--rows", "8", "--api-key-file", str(keys)) as server:
        yield server


def test_generated_requests_find_no_fault(locked: Served, tmp_path: Path) -> None:
    """Everything that contradicts the description, or comes without the key, is refused as it says; nothing, NUL
    included, is a server error."""
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    authorization = f"Authorization: Bearer {KEY}"
    run = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("schemathesis")), "run", f"{locked.url}/openapi.json"),
            *("--checks", "all", "--header", authorization),
            *("--mode", "all", "--phases", "coverage,fuzzing"),
            *(
                "--max-examples",
                str(EXAMPLES),
                "--workers",
                "1",  # two threads that parse Python at once can trip CPython 3.11
                "--generation-allow-x00",
                "true",
                "--no-color",
            ),
            *("--generation-deterministic", "--warnings", "off"),
        ],
        capture_output=True,
        text=True,
        timeout=3000,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stdout[-4000:]
    assert " passed" in run.stdout
    hi = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0}
    assert locked.post("/v1/chat/completions", hi).status == 401
    name, _, value = authorization.partition(": ")
    answer = locked.post("/v1/chat/completions", hi, {name: value}).json
    assert answer["choices"][0]["message"]["content"] == "Hello world"


def test_every_route_is_described() -> None:
    paths = document(["m"])["paths"]
    routes = {path.replace(":path", "") for path in (*GETS, *POSTS)}
    assert set(paths) == routes - {"/v1/embeddings"}


def test_the_description_has_every_field_and_the_names_of_the_model() -> None:
    operation = document(["m", "n"])["paths"]["/v1/chat/completions"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert set(schema["properties"]) == set(CHAT)
    assert schema["additionalProperties"] is False
    assert schema["properties"]["model"] == {"enum": ["m", "n", None]}


def test_the_description_says_what_needs_a_key() -> None:
    assert document(["m"])["security"] == []
    locked = document(["m"], keyed=True)
    assert locked["security"] == [{"key": []}]
    public = {path for path, routes in locked["paths"].items() if routes.get("get", {}).get("security") == []}
    assert public == PUBLIC - {"/"}
