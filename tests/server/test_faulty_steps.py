"""A step of the engine that goes wrong under a running server: everybody is told, and it ends with status 8."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.helpers.served import PATIENCE, served
from tests.server.test_life import ENDLESS, Asked

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
