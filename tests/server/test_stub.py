"""The server before an engine that computes nothing: whole loads in a second or two."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from benchmarks.load_scene import ask, body, leaving
from benchmarks.watched_server import NAME, Setup, Watched, until
from llmrs_cli.server.load import Plan, run
from tests.helpers.tiny_model import TinyModel, write_tiny

LETTERS = 90
"""The first ids of the tokenizer are letters."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / NAME, TinyModel())


def before_a_stub(model: Path, scene: Callable[[Watched], Awaitable[None]], step_ms: float = 0.0) -> None:
    """Play a scene with a server whose engine takes a step every so many milliseconds."""
    command = (sys.executable, "-m", "benchmarks.stub_engine", str(step_ms), str(LETTERS))

    async def play() -> None:
        with Watched(Setup(str(model), command=command)) as server:
            await server.ready()
            await scene(server)

    asyncio.run(play())


def test_sixty_four_streams_at_once_get_all_of_their_tokens(model: Path) -> None:
    async def scene(server: Watched) -> None:
        plan = Plan(NAME, 1000, prompts=192, input_tokens=16, output_tokens=40, concurrency=64)
        figures = await run(server.target, plan, lambda done, whole: None)
        assert (figures["completed"], figures["failed"]) == (192, 0)
        assert figures["total_output_tokens"] == 192 * 40
        assert figures["max_concurrent_requests"] == 64
        assert 192 <= figures["pieces"] <= 192 * 40
        await server.idle()

    before_a_stub(model, scene)


def test_clients_that_leave_free_their_rows_tasks_and_files(model: Path) -> None:
    async def scene(server: Watched) -> None:
        await ask(server, body([1, 2], 4))
        before = await server.look()
        await asyncio.gather(*(leaving(server, body([1, 2], 10_000, n=2), 0.2) for _ in range(32)))
        await server.idle()

        async def left() -> int:
            after = await server.look()
            return max(int(after[name]) - int(before[name]) for name in ("tasks", "files"))

        while await left() > 2:
            await asyncio.sleep(0.05)

    before_a_stub(model, scene, step_ms=20)


def test_an_engine_that_is_killed_under_load_is_told_to_everybody(model: Path) -> None:
    async def scene(server: Watched) -> None:
        asked = [asyncio.create_task(ask(server, body([1, 2], 10_000))) for _ in range(16)]
        while (
            await server.metric("time_to_first_token_seconds_count") < 16
        ):  # so each has a response that began
            await asyncio.sleep(0.02)
        child = Path(f"/proc/{server.child}")
        os.kill(server.child, signal.SIGKILL)
        answers = await asyncio.gather(*asked)
        assert [answer.error for answer in answers] == ["The engine's process ended unexpectedly."] * 16
        assert await asyncio.to_thread(server.process.wait, 60) == 8
        await until(lambda: not child.exists())

    before_a_stub(model, scene, step_ms=20)
