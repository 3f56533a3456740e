"""Fixtures that every room uses; what a single room needs lives in its own conftest."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.helpers.descriptors import open_descriptors

DATA = Path(__file__).parent / "data"

# A busy machine is no failure. CI tries the same examples each time: what it says is about the change
# at hand; new examples are looked for where somebody is there to read what they find.
settings.register_profile("unhurried", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("unhurried")

# A shell that starts us in the background or under nohup ignores signals for us, and so for what we test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def descriptors_are_closed() -> Iterator[None]:
    """Tests close what they open; what stays are files of models that are kept for several tests.

    Counted in each process that runs tests: `make test` has two.
    """
    before = len(open_descriptors())
    yield
    left = len(open_descriptors()) - before
    assert left < 200, f"{left} files were left open"


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of golden answers, checkpoints and tokenizers."""
    return DATA
