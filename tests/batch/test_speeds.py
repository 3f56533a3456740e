"""How fast earlier runs were: what is kept of a run, what is not, and files that somebody else wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.batch.job import Counts
from llmrs_cli.batch.speeds import FEWEST, KEPT, Speed, recall, remember


def counts(rows: int = 10, failed: int = 0, tokens: int = 500) -> Counts:
    return Counts(rows=rows, failed=failed, completion_tokens=tokens)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "speeds.json"


def test_a_run_is_remembered_by_its_key(file: Path) -> None:
    remember(file, "m on cpu", counts(), seconds=25.0)
    assert recall(file, "m on cpu") == Speed(tokens_per_second=20.0, mean_answer=50.0)
    assert recall(file, "m on cuda") is None


def test_rows_that_failed_have_no_answer_to_be_counted(file: Path) -> None:
    remember(file, "m", counts(rows=12, failed=2), seconds=25.0)
    assert recall(file, "m") == Speed(20.0, 50.0)


def test_the_latest_run_counts(file: Path) -> None:
    remember(file, "m", counts(tokens=100), seconds=1.0)
    remember(file, "m", counts(tokens=900), seconds=1.0)
    assert recall(file, "m") == Speed(900.0, 90.0)


@pytest.mark.parametrize(
    ("run", "seconds"),
    [
        (counts(rows=FEWEST - 1), 5.0),
        (counts(rows=FEWEST + 4, failed=5), 5.0),
        (counts(tokens=0), 5.0),
        (counts(), 0.0),
        (Counts(), 5.0),
    ],
)
def test_a_run_that_says_nothing_leaves_what_is_known(file: Path, run: Counts, seconds: float) -> None:
    remember(file, "m", counts(), seconds=25.0)
    before = file.read_bytes()
    remember(file, "m", run, seconds)
    assert file.read_bytes() == before


def test_the_fewest_rows_are_enough(file: Path) -> None:
    remember(file, "m", counts(rows=FEWEST), seconds=5.0)
    assert recall(file, "m") is not None


def test_the_oldest_are_forgotten_and_a_run_makes_its_key_young(file: Path) -> None:
    for number in range(KEPT):
        remember(file, f"m{number}", counts(), seconds=1.0)
    remember(file, "m0", counts(), seconds=1.0)
    remember(file, "new", counts(), seconds=1.0)
    known = json.loads(file.read_bytes())
    assert len(known) == KEPT
    assert "m1" not in known
    assert list(known)[-2:] == ["m0", "new"]


@given(st.lists(st.sampled_from("abcdef"), max_size=20), st.integers(2, 5))
def test_the_file_holds_the_latest_keys_in_their_order(keys: list[str], kept: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        disk: dict[str, bytes] = {}
        patch.setattr("llmrs_cli.batch.speeds.KEPT", kept)
        patch.setattr("llmrs_cli.batch.durable.write_file", lambda path, data: disk.update(x=data))
        patch.setattr("llmrs_cli.batch.speeds._read", lambda path: json.loads(disk.get("x", b"{}")))
        for key in keys:
            remember(Path("x"), key, counts(), seconds=1.0)
        latest = list(dict.fromkeys(reversed(keys)))[:kept]
        assert list(json.loads(disk.get("x", b"{}"))) == latest[::-1]


def test_a_cache_that_cannot_be_written_is_no_matter(tmp_path: Path) -> None:
    remember(tmp_path / "none" / "speeds.json", "m", counts(), seconds=1.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"null",
        b'{"m": ',
        b'{"m": 5}',
        b'{"m": []}',
        b'{"m": null}',
        b'{"m": {}}',
        b'{"m": {"tokens_per_second": "fast", "mean_answer": 1}}',
        b'{"m": {"tokens_per_second": 0, "mean_answer": 1}}',
        b'{"m": {"tokens_per_second": -3, "mean_answer": 1}}',
        b'{"m": {"tokens_per_second": NaN, "mean_answer": 1}}',
        b'{"m": {"tokens_per_second": 1, "mean_answer": Infinity}}',
        b'{"m": {"tokens_per_second": 1}}',
        b"[" * 100_000,
    ],
    ids=lambda content: content[:44].decode("latin-1"),
)
def test_what_is_no_speed_is_none_and_is_written_over(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert recall(file, "m") is None
    remember(file, "m", counts(), seconds=25.0)
    assert recall(file, "m") == Speed(20.0, 50.0)


def test_other_entries_of_a_file_are_left_alone(file: Path) -> None:
    theirs: dict[str, Any] = {"later version": {"x": 1}}
    file.write_text(json.dumps(theirs))
    remember(file, "m", counts(), seconds=25.0)
    assert json.loads(file.read_bytes())["later version"] == {"x": 1}
