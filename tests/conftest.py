"""Fixtures that every room uses; what a single room needs lives in its own conftest."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

DATA = Path(__file__).parent / "data"

settings.register_profile("unhurried", deadline=None)  # a busy machine is no failure
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of golden answers, checkpoints and tokenizers."""
    return DATA
