"""Fixtures of the weights room."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.smollm2 import require_smollm2


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The built-in model's GGUF file."""
    return require_smollm2()
