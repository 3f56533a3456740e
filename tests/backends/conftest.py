"""Every backend that this machine has; absent ones are skipped with the reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llmrs_cli.engine.backends.base import Backend
from llmrs_cli.engine.backends.registry import open_backend, probe

FAST = ["cpu"]
"""Backends that are compared with the reference."""


@pytest.fixture(scope="session", params=["reference", *FAST])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """One backend after the other."""
    yield from opened(request.param)


@pytest.fixture(scope="session", params=FAST)
def fast(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """One backend after the other, without the reference."""
    yield from opened(request.param)


def opened(name: str) -> Iterator[Backend]:
    reason = probe(name).reason
    if reason is not None:
        pytest.skip(reason=f"{name}: {reason}")
    backend = open_backend(name)
    yield backend
    backend.close()
