"""The server against its own OpenAPI description: generated requests of the right kind and of the wrong one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from llmrs_cli.server.app import GETS, POSTS
from llmrs_cli.server.openapi import document
from llmrs_cli.server.schema import CHAT
from tests.helpers.served import Served

NOT_CHECKED = (
    "positive_data_acceptance",  # what fits may still be more than the model's context
    "unsupported_method",  # a POST that is no JSON is refused before its path is looked at
)
EXAMPLES = 100 if os.environ.get("SOAK") == "1" else 5
"""Of each kind and path, beside every field's edge cases."""


def test_generated_requests_find_no_fault(server: Served, tmp_path: Path) -> None:
    """Everything that contradicts the description is refused; nothing, NUL included, is a server error."""
    run = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("schemathesis")), "run", f"{server.url}/openapi.json"),
            *("--checks", "all", "--exclude-checks", ",".join(NOT_CHECKED)),
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


def test_every_route_is_described() -> None:
    paths = document(["m"])["paths"]
    assert set(paths) == {*GETS, *POSTS} - {"/v1/embeddings"}


def test_the_description_has_every_field_and_the_names_of_the_model() -> None:
    operation = document(["m", "n"])["paths"]["/v1/chat/completions"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert set(schema["properties"]) == set(CHAT)
    assert schema["additionalProperties"] is False
    assert schema["properties"]["model"] == {"enum": ["m", "n", None]}
