"""A command line apart from the user's own: folders of the test, no network, the reference backend."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from llmrs_cli.cli.root import root
from tests.helpers.fake_hub import FakeHub, FakeRepo, fake_hub
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


@pytest.fixture
def online(ladder: MakeLadder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A Hub that serves a scripted model as a/b, with the caches under the test's folder."""
    monkeypatch.setattr("llmrs_cli.hub.store.PAUSES", (0.0, 0.0))
    with fake_hub({"a/b": FakeRepo.of(Path(ladder()))}) as hub:
        for name, value in hub.env(tmp_path).items():
            monkeypatch.setenv(name, value)
        yield hub
