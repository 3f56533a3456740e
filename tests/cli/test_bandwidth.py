"""The speed of this machine's memory, remembered: measured by doctor and bench, shown by a chat that never measures."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from llmrs_cli.cli.bandwidth import KEPT, known_bandwidth, remember_bandwidth
from tests.cli.conftest import MakeLadder, Run


def cache_file(environment: Path) -> Path:
    return environment / ".cache/llmrs/bandwidth.json"


def test_what_was_measured_last_is_known(environment: Path) -> None:
    assert known_bandwidth("cpu") is None
    remember_bandwidth("cpu", 1e9)
    remember_bandwidth("cpu", 2e9)
    remember_bandwidth("cuda:1", 3e12)
    assert (known_bandwidth("cpu"), known_bandwidth("cuda:1")) == (2e9, 3e12)
    assert known_bandwidth("cuda") is None, "nobody measured cuda:0"
    remember_bandwidth("cuda:0", 4e12)
    assert known_bandwidth("cuda") == 4e12
    assert stat.S_IMODE(cache_file(environment).stat().st_mode) == 0o600


def test_another_machine_or_set_of_gpus_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    remember_bandwidth("cuda:0", 1e12)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert known_bandwidth("cuda:0") is None
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr("platform.node", lambda: "elsewhere")
    assert known_bandwidth("cuda:0") is None


def test_few_are_kept(environment: Path) -> None:
    for index in range(KEPT + 5):
        remember_bandwidth(f"cuda:{index}", 1e12)
    assert len(json.loads(cache_file(environment).read_text())) == KEPT
    assert known_bandwidth("cuda:0") is None
    assert known_bandwidth(f"cuda:{KEPT + 4}") == 1e12


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 10**5])
def test_a_damaged_cache_is_no_cache(environment: Path, content: bytes) -> None:
    remember_bandwidth("cpu", 1e9)
    cache_file(environment).write_bytes(content)
    assert known_bandwidth("cpu") is None
    remember_bandwidth("cpu", 2e9)
    assert known_bandwidth("cpu") == 2e9


@pytest.mark.parametrize("value", ["1e9", None, -1, 0, float("inf"), float("nan"), [1]])
def test_what_is_no_speed_is_not_taken_for_one(environment: Path, value: object) -> None:
    remember_bandwidth("cpu", 1e9)
    file = cache_file(environment)
    file.write_text(json.dumps(dict.fromkeys(json.loads(file.read_text()), value)))
    assert known_bandwidth("cpu") is None


def test_a_cache_that_cannot_be_written_is_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMRS_CACHE_DIR", "/dev/null/cache")
    remember_bandwidth("cpu", 1e9)
    assert known_bandwidth("cpu") is None


def test_a_chat_compares_itself_with_what_was_measured_and_else_says_nothing(
    llmrs: Run, ladder: MakeLadder
) -> None:
    question = ("chat", ladder(), "-p", "Hi", "-t", "0", "--stats")
    assert "of what memory allows" not in llmrs(*question).stderr
    remember_bandwidth("reference", 1e6)
    figures = llmrs(*question).stderr
    assert "% of what memory allows)" in figures
