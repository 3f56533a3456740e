"""The built-in model's file on this machine, for tests that need a real model; never fetched here.

`python -m tests.fetch` brings it. LLMRS_TEST_GGUF names another copy. Where LLMRS_TEST_NEEDS_MODEL is set,
as in CI, a test without it fails: skips there would hide that nothing real was run.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
NEEDED = "LLMRS_TEST_NEEDS_MODEL"


def smollm2_path() -> Path | None:
    """Where the file is, None if it is not here."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    named = os.environ.get("LLMRS_TEST_GGUF")
    places = [*([Path(named)] if named else []), cache / "llmrs" / "models" / NAME]
    return next((path for path in places if path.is_file()), None)


def require_smollm2() -> Path:
    """The file, or a skip (a failure, if it must be here) that says how to get it."""
    path = smollm2_path()
    if path is None:
        end = pytest.fail if NEEDED in os.environ else pytest.skip
        end("the built-in model is not here: run `python -m tests.fetch` or set LLMRS_TEST_GGUF")
    return path
