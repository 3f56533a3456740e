"""A command line apart from the user's own: folders of the test, no network, the reference backend."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from llmrs_cli.cli.root import root
from tests.helpers.ladder import Ladder, write_ladder

SMALL = 384
"""Vocabulary of the scripted models: room for all pieces, and quick in float64."""
Run = Callable[..., Result]
MakeLadder = Callable[..., str]


@pytest.fixture(autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Variables of a fresh user; returns the home folder."""
    home = tmp_path_factory.mktemp("home")
    for name in os.environ:
        if name.startswith(("LLMRS_", "HF_", "XDG_", "NO_COLOR", "FORCE_COLOR")):
            monkeypatch.delenv(name)
    for name, value in {
        "HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "LLMRS_DEVICE": "reference",
        "TERM": "xterm",
    }.items():
        monkeypatch.setenv(name, value)
    return home


@pytest.fixture(scope="session")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> MakeLadder:
    """Writes a scripted model and returns its folder as text; equal scripts share one."""
    made: dict[str, str] = {}

    def make(*reply: Any, **changes: Any) -> str:
        script = Ladder(reply=reply, vocab=SMALL, **changes) if reply else Ladder(vocab=SMALL, **changes)
        key = repr(script)
        if key not in made:
            made[key] = str(write_ladder(tmp_path_factory.mktemp("ladder") / "model", script))
        return made[key]

    return make


@pytest.fixture
def llmrs() -> Run:
    """Runs a command line in this process; stdout and stderr apart."""

    def run(*args: str, stdin: str | bytes | None = None, env: Mapping[str, str] | None = None) -> Result:
        return CliRunner(env=env).invoke(root, list(args), input=stdin)

    return run
