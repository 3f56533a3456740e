"""Tests that need the built-in model: skipped where it is not, unless it has to be there."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmrs_cli.errors import NetworkError
from tests import fetch
from tests.helpers import smollm2


@pytest.fixture(autouse=True)
def absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without the file and without a network."""

    def unreachable(*_: object, **__: object) -> None:
        raise NetworkError("The network is down.")

    monkeypatch.setattr(fetch, "locate_built_in", unreachable)
    monkeypatch.setattr(fetch, "open_backend", unreachable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("LLMRS_TEST_GGUF", raising=False)
    monkeypatch.delenv(smollm2.NEEDED, raising=False)


def test_without_it_tests_are_skipped_and_the_others_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch.main() == 0
    assert "The network is down." in capsys.readouterr().err
    with pytest.raises(pytest.skip.Exception, match="tests.fetch"):
        smollm2.require_smollm2()


def test_where_it_has_to_be_there_nothing_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(smollm2.NEEDED, "1")
    assert fetch.main() == 1
    with pytest.raises(pytest.fail.Exception, match="tests.fetch"):
        smollm2.require_smollm2()


def test_another_copy_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "m.gguf"
    monkeypatch.setenv("LLMRS_TEST_GGUF", str(copy))
    assert smollm2.smollm2_path() is None
    copy.touch()
    assert smollm2.require_smollm2() == copy
