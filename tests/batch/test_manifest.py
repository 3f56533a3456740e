"""The manifest: what it tells of a run, and that what cannot be read is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmrs_cli import __version__
from llmrs_cli.batch.job import Counts
from llmrs_cli.batch.manifest import FINISHED, RUNNING, Manifest, Past, read_manifest

SETTINGS = {"model": "m", "model version": "abc", "temperature": 0.0}
REUSED = Counts(rows=4, failed=1, prompt_tokens=40, completion_tokens=20)
COMPUTED = Counts(rows=6, failed=2, prompt_tokens=60, completion_tokens=30, merged=3)


def written(path: Path, status: str, **more: Any) -> dict[str, Any]:
    manifest = Manifest(SETTINGS, 7, ("batch", "in \udcff"), "cpu", "in.jsonl")
    manifest.write(path, status, REUSED, COMPUTED, **more)
    record = json.loads(path.read_text("utf-8"))
    assert isinstance(record, dict)
    return record


def test_it_says_what_made_an_output_and_what_came_of_it(tmp_path: Path) -> None:
    record = written(tmp_path / "m", FINISHED, seconds=2.0, input_digest="d")
    assert record.pop("started") <= record.pop("ended")
    assert record == {
        "llmrs": __version__,
        "status": "finished",
        "settings": SETTINGS,
        "seed": 7,
        "arguments": ["batch", "in \udcff"],
        "device": "cpu",
        "input": "in.jsonl",
        "input_digest": "d",
        "rows": {"done": 10, "failed": 3, "reused": 4, "computed": 3, "merged": 3},
        "tokens": {"prompt": 100, "completion": 50},
        "seconds": 2.0,
        "tokens_per_second": 15.0,
    }


def test_while_a_run_goes_on_it_has_no_end(tmp_path: Path) -> None:
    record = written(tmp_path / "m", RUNNING)
    assert (record["ended"], record["tokens_per_second"]) == (None, None)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_run_reads_what_it_needs(tmp_path: Path) -> None:
    written(tmp_path / "m", FINISHED, input_digest="d")
    assert read_manifest(tmp_path / "m") == Past("finished", SETTINGS, 7, done=10, failed=3, input_digest="d")


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", "{}", '{"rows": 5}', "[" * 100_000, '{"settings": 1, "rows": {}}']
)
def test_what_is_none_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "m").write_text(content)
    assert read_manifest(tmp_path / "m") is None
    assert read_manifest(tmp_path / "nothing") is None
