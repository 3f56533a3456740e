"""Fixtures that every room uses; what a single room needs lives in its own conftest."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

DATA = Path(__file__).parent / "data"

# A busy machine is no failure. CI tries the same examples each time: what it says is about the change
# at hand; new examples are looked for where somebody is there to read what they find.
settings.register_profile("unhurried", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("unhurried")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts us in the background ignores Ctrl-C for us, and so for the programs we test.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of golden answers, checkpoints and tokenizers."""
    return DATA
