"""Fixtures that every room uses; what a single room needs lives in its own conftest."""

from __future__ import annotations

from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of golden answers, checkpoints and tokenizers."""
    return DATA
