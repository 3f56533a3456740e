"""What the help says of choices that clients cannot guess, and that it is so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from llmrs_cli.cli.root import root
from llmrs_cli.server.budget import MAX_SCORES
from tests.helpers.script_model import CONTEXT
from tests.helpers.served import Served, served

LOOP = {"prompt": "say L", "temperature": 0}


@pytest.fixture(scope="module")
def page() -> str:
    """The help in one line."""
    return " ".join(CliRunner().invoke(root, ["serve", "--help"]).output.split())


def usage(server: Served, path: str, **body: Any) -> dict[str, int]:
    told: dict[str, int] = server.post(path, body).json["usage"]
    return told


def test_an_answer_may_take_the_rest_of_the_context(server: Served, page: str) -> None:
    assert "An answer may take the rest of the context: it does unless max_tokens says less" in page
    assert "a larger max_tokens is lowered to it" in page
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "L"}]
    more = {"messages": chat, "continue_final_message": True, "temperature": 0}
    for limit in ({}, {"max_tokens": 10_000}, {"max_completion_tokens": 10_000}):
        assert usage(server, "/v1/chat/completions", **more, **limit)["total_tokens"] == CONTEXT
    for limit in ({}, {"max_tokens": 10_000}):
        assert usage(server, "/v1/completions", **LOOP, **limit)["total_tokens"] == CONTEXT


def test_the_newer_limit_wins(server: Served, page: str) -> None:
    assert "max_completion_tokens wins over max_tokens" in page
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "L"}]
    for new, old in ((3, 5), (5, 3)):
        limits = {"max_completion_tokens": new, "max_tokens": old}
        told = usage(
            server,
            "/v1/chat/completions",
            messages=chat,
            continue_final_message=True,
            temperature=0,
            **limits,
        )
        assert told["completion_tokens"] == new


def test_parts_are_joined_with_nothing_between_them(server: Served, page: str) -> None:
    assert "The parts of a message are joined with nothing between them" in page
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for role in ("system", "user", "tool"):
        prompts = [
            server.post(
                "/v1/chat/completions/render", {"messages": [{"role": role, "content": content}]}
            ).json
            for content in (parts, "ab")
        ]
        assert prompts[0] == prompts[1]


def test_the_answers_of_a_request_share_what_there_is(server: Served, page: str) -> None:
    assert f"share four contexts and {MAX_SCORES:,} log-probabilities" in page
    told = usage(server, "/v1/completions", **LOOP, n=8)
    assert told["completion_tokens"] == 8 * (4 * CONTEXT // 8)
    assert server.post("/v1/completions", {**LOOP, "n": 8, "max_tokens": 4 * CONTEXT // 8 + 1}).status == 400


def test_what_is_left_open_is_the_model_s_and_what_is_said_holds(
    script_model: Path, tmp_path: Path, page: str
) -> None:
    assert (
        "What a request leaves open is as the model's generation_config.json has it, and what it says holds"
        in page
    )
    folder = tmp_path / "model"
    shutil.copytree(script_model, folder)
    file = folder / "generation_config.json"
    config = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**config, "temperature": 1.9, "do_sample": True}))
    body = {"prompt": "F", "max_tokens": 8, "n": 8}
    with served(folder, tmp_path) as server:

        def answers(**fields: Any) -> set[str]:
            reply = server.post("/v1/completions", {**body, **fields})
            return {choice["text"] for choice in reply.json["choices"]}

        assert len(answers()) > 1
        assert len(answers(temperature=0)) == 1
