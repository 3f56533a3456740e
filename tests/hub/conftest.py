"""What the tests of the hub share: a small repository, and a way to locate a model as a command would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from llmrs_cli.hub.access import HubAccess
from llmrs_cli.hub.bring import Check
from llmrs_cli.hub.names import parse_model
from llmrs_cli.hub.store import Located, locate
from tests.helpers.fake_hub import FakeHub, FakeRepo
from tests.helpers.told import Told

Locate = Callable[..., Located]
WEIGHTS = bytes(range(256)) * 400
"""Content of the small repository's one large file; nothing here looks inside."""


NOT_OURS = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


@pytest.fixture(autouse=True)
def _nobody_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No proxy, token or cache of the person who runs the tests; no pauses between tries."""
    monkeypatch.setattr("llmrs_cli.hub.store.PAUSES", (0.0, 0.0, 0.0, 0.0))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
    for name in (*NOT_OURS, "HF_HOME", "HF_HUB_CACHE", "HF_OIDC_RESOURCE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def small() -> FakeRepo:
    """A repository with everything that a model needs, and things that it does not."""
    return FakeRepo(
        {
            "config.json": b'{"model_type": "llama"}',
            "tokenizer.json": b"{}",
            "model.safetensors": WEIGHTS,
            "pytorch_model.bin": b"pickle" * 2000,
            "original/consolidated.00.pth": b"x" * 9000,
            "README.md": b"# small",
        }
    )


@pytest.fixture
def told() -> Told:
    """Listens to what the hub says."""
    return Told()


@pytest.fixture
def find(tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch) -> Locate:
    """`find(hub, "a/b")` locates a model with its cache under the test's folder."""

    def locate_it(
        hub: FakeHub, text: str = "a/b", *, offline: bool = False, token: str = "", check: Check | None = None
    ) -> Located:
        monkeypatch.setenv("HF_TOKEN", token)
        access = HubAccess.from_environment(offline=offline, env=hub.env(tmp_path))
        return locate(parse_model(text), access, told, check)

    return locate_it
